"""A run's progress on a terminal, redrawn in place, or as a line now and then where there is no terminal."""

import io
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from select import POLLOUT, poll
from threading import RLock
from typing import TextIO, cast

from agentkit.cli.terminal import escape, fit
from agentkit.protocols import ExitReason
from agentkit.runs import Progress, StopLevel

REDRAW_S = 0.2
LINE_S = 30.0

_PATIENCE_S = 0.1
_CLEAR = "\r\x1b[K"


def render_progress(progress: Progress, width: int | None = None) -> str:
    """One line that says how far a run is, in at most `width` columns: what matters most comes first."""
    expected = "?" if progress.expected is None else str(progress.expected)
    percent = "" if not progress.expected else f" {100 * progress.done // progress.expected}%"
    parts = [f"{progress.done}/{expected}{percent}", f"{progress.live} live"]
    if progress.stopping is StopLevel.DRAIN:
        parts.append("draining")
    elif progress.stopping:
        parts.append("cancelling")
    else:
        parts.append(f"eta {'?' if progress.eta_s is None else '~' + duration(progress.eta_s)}")
    if progress.mean_score is not None:
        parts.append(f"score {progress.mean_score:.3f}")
    bad = [(reason, count) for reason, count in progress.reasons.items() if reason is not ExitReason.FINISHED]
    parts += [f"{count} {reason.value}" for reason, count in sorted(bad, key=lambda each: (-each[1], each[0]))]
    if progress.tokens_per_s:
        parts.append(f"{_number(progress.tokens_per_s)} tok/s")
    parts.append(f"{_number(progress.turns_per_s)} turns/s")
    parts.append(duration(progress.elapsed_s))
    if progress.oldest is not None:
        key, seconds = progress.oldest
        parts.append(f"oldest {escape(str(key))} {duration(seconds)}")
    return fit(" · ".join(parts), width)


def duration(seconds: float) -> str:
    """`seconds` as a person reads them: 12s, 3m04s, 2h05m, 4d03h."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


class ProgressView:
    """Shows progress on a stream. Whoever else writes there writes to `ProgressView.stream`, from any thread.

    Where the stream is closed, broken or full, nothing more is shown, and nobody hears of it: the run matters. Where
    nobody reads it, or the terminal is held by Ctrl-S, what the event loop has to say is left out; logs wait.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic, quiet: bool = False) -> None:
        self._stream = stream
        self._clock = clock
        self._quiet = quiet
        self._in_place = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = ""
        # the first line comes in its turn where lines stay: a short run needs none
        self._last = -math.inf if self._in_place else clock()
        self._stopping = StopLevel.GO_ON
        self._lock = RLock()
        self._lost = False
        self.resume_line = ""
        """What to type to go on with the run, once it is known."""

    @property
    def stream(self) -> TextIO:
        """A stream whose lines come above the progress."""
        return cast("TextIO", _Above(self))

    def show(self, progress: Progress) -> None:
        """Draw what there is to say, if it is time to."""
        if progress.stopping > self._stopping:
            self._stopping = progress.stopping
            self._tell_stopping(progress)
        if self._quiet:
            return
        now = self._clock()
        if now - self._last < (REDRAW_S if self._in_place else LINE_S):
            return
        self._last = now
        if not self._in_place:
            self.say(render_progress(progress))
            return
        # one column stays free: some terminals wrap a line that fills the last one
        line = render_progress(progress, max(8, shutil.get_terminal_size((80, 24)).columns - 1))
        with self._turn(0.0) as taken:  # it comes again
            if taken and line != self._drawn:
                self._write(_CLEAR + line)
                self._drawn = line

    def say(self, text: str) -> None:
        """Write lines of their own, above the progress; without waiting for whoever reads them."""
        with self._turn() as taken:
            if taken:
                self.say_in_time(text)

    def say_in_time(self, text: str) -> None:
        """As `say`, but waits until they are taken: for a thread that has time."""
        with self._lock:
            drawn = self._drawn
            self._write((_CLEAR if drawn else "") + text.removesuffix("\n") + "\n" + drawn)

    def close(self) -> None:
        """Leave the line as it is and go on below it."""
        with self._turn() as taken:
            if taken and self._drawn:
                self._write("\n")
                self._drawn = ""

    @contextmanager
    def _turn(self, patience_s: float = _PATIENCE_S) -> Iterator[bool]:
        """Holds the lock inside, if that is to be had soon and a line is taken at once: the loop must not wait."""
        if not self._lock.acquire(timeout=patience_s):
            yield False
            return
        try:
            yield self._lost or _takes_a_line(self._stream)
        finally:
            self._lock.release()

    def _tell_stopping(self, progress: Progress) -> None:
        live = f"{progress.live} rollout{'' if progress.live == 1 else 's'}"
        if progress.stopping is StopLevel.DRAIN:
            self.say(f"Stopping: no new rollouts; {live} under way go on to the end. Ctrl-C again cancels them.")
        else:
            again = f" Later: {self.resume_line}" if self.resume_line else ""
            self.say(f"Cancelling {live}: all are sealed, envs closed. Ctrl-C again kills this process.{again}")

    def _write(self, text: str) -> None:
        if self._lost:
            return
        try:
            encoding = self._stream.encoding or "utf-8"
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # the latter for a stream that was closed
            self._lost = True


class _Above(io.TextIOBase):
    """Hands whole lines to the view; half a line waits for its rest."""

    def __init__(self, view: ProgressView) -> None:
        self._view = view
        self._half = ""

    def write(self, text: str, /) -> int:
        whole, newline, self._half = (self._half + text).rpartition("\n")
        if newline:
            self._view.say_in_time(whole)
        return len(text)


def _takes_a_line(stream: TextIO) -> bool:
    """Whether a short text can be written without waiting."""
    try:
        waiting = poll()
        waiting.register(stream.fileno(), POLLOUT)
        return bool(waiting.poll(0))
    except (OSError, ValueError):  # it has no number, or is closed: writing will tell
        return True


def _number(value: float) -> str:
    return f"{value / 1000:.1f}k" if value >= 9999.5 else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"
