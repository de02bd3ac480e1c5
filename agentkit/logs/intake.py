"""From a log call to a line: a handler that only notes what was said, and a thread that writes it down.

A log call makes the record's texts, because what they are made of may change, and queues them. Redaction, formatting
and writing happen on a thread: a terminal that is not read, or a slow disk, holds no event loop. The queue is bounded;
what finds it full is dropped, and the number of what was dropped is told as soon as there is room.
"""

import logging
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from agentkit.logs.context import current_rollout
from agentkit.logs.faults import cut_middle
from agentkit.logs.lines import ROLLOUT_ENDED, TRANSCRIPT, Entry
from agentkit.protocols import RolloutKey

_QUEUED = 8192
_TEXT = 16_384
_IDLE_S = 1.0
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", ROLLOUT_ENDED}

Write = Callable[[Entry], None]


class Intake(logging.Handler):
    """Queues records for a writer. It never raises, and holds the caller up no longer than making the text takes."""

    def __init__(self, writer: "LogWriter", *, run: str | None, level: int, transcript: bool) -> None:
        super().__init__(level)
        self._writer = writer
        self._run = run
        self._transcript = transcript

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the record."""
        with suppress(Exception):  # a log call must not raise, whatever was passed to it
            if threading.get_ident() == self._writer.thread_id:
                return  # what writing logs would be written without end
            if record.name == TRANSCRIPT and not self._transcript:
                return
            self._writer.put(_entry(record, self._run))
            ended = record.__dict__.get(ROLLOUT_ENDED)
            if isinstance(ended, RolloutKey):
                self._writer.put(ended)


def _entry(record: logging.LogRecord, run: str | None) -> Entry:
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return Entry(
        record.created,
        record.levelno,
        record.levelname,
        record.name,
        cut_middle(_message(record), _TEXT),
        current_rollout(),
        run,
        _fault(record),
        _copied(fields) if fields else {},
        None if record.threadName == "MainThread" else record.threadName,
    )


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # arguments that do not fit, or that cannot print themselves
        try:
            return f"{record.msg} {record.args!r} (not formatted: {type(error).__name__})"
        except Exception:
            return f"(a message that cannot be shown: {type(error).__name__})"


def _fault(record: logging.LogRecord) -> str | None:
    text: str | None = None
    if record.exc_info and record.exc_info[0] is not None:
        try:
            text = "".join(traceback.format_exception(*record.exc_info))
        except Exception as error:
            text = f"(a traceback that cannot be shown: {type(error).__name__})"
    elif record.exc_text:
        text = record.exc_text
    if record.stack_info:
        text = f"{text or ''}{record.stack_info}"
    return None if text is None else cut_middle(text, _TEXT)


def _copied(value: object, depth: int = 4) -> "dict[str, object]":
    """The fields as they are now: other values than plain ones as text."""
    if not isinstance(value, dict):
        return {}
    return {str(key): _copy(inner, depth) for key, inner in list(value.items())[:50]}


def _copy(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return cut_middle(value, _TEXT)
    if depth and isinstance(value, dict):
        return _copied(value, depth - 1)
    if depth and isinstance(value, list | tuple):
        return [_copy(inner, depth - 1) for inner in value[:50]]
    try:
        return cut_middle(str(value), _TEXT)
    except Exception as error:  # its own __str__ fails
        return f"(cannot be shown: {type(error).__name__})"


class LogWriter:
    """Writes what is queued, on a daemon thread of its own."""

    def __init__(
        self,
        write: Write,
        *,
        ended: Callable[[RolloutKey], None],
        flush: Callable[[], None],
        idle: Callable[[], None],
    ) -> None:
        self._queue: SimpleQueue[Entry | RolloutKey | threading.Event | None] = SimpleQueue()
        self._write = write
        self._ended = ended
        self._flush = flush
        self._idle = idle
        self.dropped = 0
        """Records that found the queue full, or that could not be written."""
        self._told = 0
        self.thread_id: int | None = None
        self._thread = threading.Thread(target=self._run, name="agentkit-logs", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, item: "Entry | RolloutKey") -> None:
        """Queue an entry, or the end of a rollout; an entry that finds the queue full is dropped."""
        if isinstance(item, Entry) and self._queue.qsize() >= _QUEUED:
            self.dropped += 1
        else:
            self._queue.put(item)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until all that was logged by now is written; False where that took longer than `timeout_s`."""
        reached = threading.Event()
        self._queue.put(reached)
        return reached.wait(timeout_s)

    def stop(self, timeout_s: float = 5.0) -> bool:
        """Write what is queued and end. False: who reads the output does not, and was waited for `timeout_s`."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        self.thread_id = threading.get_ident()
        while True:
            try:
                item = self._queue.get(timeout=_IDLE_S)
            except Empty:
                self._safely(self._idle)
                continue
            if item is None:
                break
            if isinstance(item, threading.Event):
                self._tell_dropped()
                self._safely(self._flush)
                item.set()
            elif isinstance(item, RolloutKey):
                self._safely(partial(self._ended, item))
            else:
                self._safely(partial(self._write, item))
                if self._queue.empty():
                    self._tell_dropped()
                    self._safely(self._flush)
        self._tell_dropped()
        self._safely(self._idle)

    def _tell_dropped(self) -> None:
        if self.dropped > self._told:
            count, self._told = self.dropped - self._told, self.dropped
            text = f"{count} log records were dropped: they came faster than they could be written"
            self._safely(partial(self._write, Entry(time.time(), logging.WARNING, "WARNING", "agentkit.logs", text)))

    def _safely(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # a full disk, a closed stream: the next may do better
            self.dropped += 1
