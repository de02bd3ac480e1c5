"""Logging of a run: the standard library's `logging`, set up for as long as a block lasts."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from agentkit.errors import ConfigError
from agentkit.logs.files import RolloutFiles
from agentkit.logs.intake import Intake, LogWriter
from agentkit.logs.lines import TRANSCRIPT, Entry, json_line, readable, told
from agentkit.logs.redactor import Redactor
from agentkit.protocols import RolloutKey


@contextmanager
def configure(
    *,
    level: int | str = "INFO",
    to: "str | os.PathLike[str] | TextIO | None" = None,
    json: bool = False,
    run: str | None = None,
    per_rollout: "str | os.PathLike[str] | None" = None,
    cut: int = 4_000,
    redactor: Redactor = Redactor(),  # noqa: B008  # frozen
) -> Iterator[LogWriter]:
    """Log to `to` while the block lasts: None is stderr, a path a file to append to, and a text stream itself.

    All loggers are heard from `level` on, not only agentkit's. Each record is one readable line, or with `json` one
    JSON object, with the id of the run and, where it was logged within a rollout, of the rollout. `per_rollout` is a
    folder that gets one readable file for each attempt: its messages, actions, observations (`cut` characters of each),
    its end, and what was logged within it. Secrets are hidden in all of it. Blocks may be nested, one for each place to
    log to. What the block yields can `flush`, and counts what was `dropped`. Leaving the block waits until all is
    written, at most 5 s where who reads the output does not.

    Raises:
        ConfigError: the level is unknown, `cut` is not positive, or the file or folder cannot be written to.
    """
    number = _level(level)
    if cut < 1:
        raise ConfigError(f"cut must be at least 1, found {cut!r}")
    files = None if per_rollout is None else RolloutFiles(_folder(per_rollout))
    output = _Output(to, json=json, level=number, files=files, cut=cut, redactor=redactor)
    writer = LogWriter(output.write, ended=output.end, flush=output.flush, idle=output.idle)
    heard = number if files is None else min(number, logging.INFO)
    handler = Intake(writer, run=run, level=heard, transcript=files is None)
    writer.start()
    try:
        with _listening(logging.getLogger(), handler, heard), ExitStack() as stack:
            if files is not None:
                teller = Intake(writer, run=run, level=logging.DEBUG, transcript=True)
                stack.enter_context(_listening(logging.getLogger(TRANSCRIPT), teller, logging.DEBUG, propagate=False))
            yield writer
    finally:
        if writer.stop():
            output.close()


@contextmanager
def _listening(logger: logging.Logger, handler: Intake, level: int, *, propagate: bool = True) -> Iterator[None]:
    """Lets `handler` hear what `logger` says from `level` on, without silencing whoever listens already."""
    before, propagated = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(min(level, before) if before else level)
    logger.propagate = propagated and propagate
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        logger.propagate = propagated
        handler.close()


def _level(level: int | str) -> int:
    number = logging.getLevelNamesMapping().get(level.upper()) if isinstance(level, str) else level
    if number is None:
        names = ", ".join(logging.getLevelNamesMapping())
        raise ConfigError(f"level must be one of {names} or a number, found {level!r}")
    return number


def _folder(path: "str | os.PathLike[str]") -> Path:
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"per_rollout must be a folder that can be made, found {str(folder)!r}: {error}") from error
    return folder


class _Output:
    """Where entries go; used by the writer's thread, and closed once that has ended."""

    def __init__(
        self,
        to: "str | os.PathLike[str] | TextIO | None",
        *,
        json: bool,
        level: int,
        files: RolloutFiles | None,
        cut: int,
        redactor: Redactor,
    ) -> None:
        self._line = json_line if json else readable
        self._level = level
        self._files = files
        self._cut = cut
        self._redactor = redactor
        self._own: TextIO | None = None
        self._stream: TextIO | None = None
        if isinstance(to, str | os.PathLike):
            try:
                self._own = Path(to).open("a", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115  # closed below
            except OSError as error:
                raise ConfigError(f"cannot log to {os.fspath(to)!r}: {error}") from error
        else:
            self._stream = to

    def write(self, entry: Entry) -> None:
        if self._files is not None and entry.rollout is not None:
            self._files.write(entry.rollout, told(entry, self._redactor, cut=self._cut))
        if entry.logger == TRANSCRIPT and self._files is not None:
            return  # its place is the file of the rollout
        if entry.level >= self._level:
            self._print(self._line(entry, self._redactor))

    def _print(self, line: str) -> None:
        stream = self._own or self._stream or sys.stderr
        try:
            stream.write(line)
        except UnicodeEncodeError:  # a stream for fewer characters than there are
            stream.write(line.encode("ascii", "backslashreplace").decode("ascii"))

    def end(self, key: RolloutKey) -> None:
        if self._files is not None:
            self._files.close(key)

    def flush(self) -> None:
        if self._files is not None:
            self._files.flush()
        (self._own or self._stream or sys.stderr).flush()

    def idle(self) -> None:
        if self._files is not None:
            self._files.close_all()
        self.flush()

    def close(self) -> None:
        if self._files is not None:
            self._files.close_all()
        if self._own is not None:
            self._own.close()
