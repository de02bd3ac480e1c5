"""The sink that a run writes to: one file per run, one writer."""

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio

from agentkit.errors import ConfigError
from agentkit.journal.codec import Codec
from agentkit.journal.database import Synchronous, journal_path, sqlite_errors
from agentkit.journal.errors import JournalError
from agentkit.journal.reader import JournalReader
from agentkit.journal.records import Append, Begin, Operation, Seal
from agentkit.journal.repeat import exit_reasons
from agentkit.journal.store import Store
from agentkit.journal.writers import InlineWriter, ThreadWriter, Writer
from agentkit.protocols import ChainDelta, ExitReason, RolloutKey, Trajectory, Turn

_CLOSE_S = 60.0


class Journal:
    """A `Sink` over one SQLite file. Each method returns once its record is committed.

    A committed record survives the death of the process by any signal. With `synchronous="NORMAL"` it may be lost when
    the machine loses power or its kernel dies: then some of the newest commits are missing, in order, and the file is
    sound. `"FULL"` waits for the disk on every commit, and loses nothing that the disk does not lose.
    """

    def __init__(self, reader: JournalReader, writer: Writer, repeat: "Collection[ExitReason]" = ()) -> None:
        """Use `Journal.open`."""
        self.reader = reader
        self._repeat = repeat
        self._writer = writer
        self._closed = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        run: "str | os.PathLike[str]",
        *,
        repeat: "Collection[ExitReason]" = (ExitReason.CANCELLED,),
        writer: Literal["thread", "inline"] = "thread",
        synchronous: Synchronous = "NORMAL",
    ) -> "AsyncIterator[Journal]":
        """The journal of `run` (its folder or the file), made where there is none, else continued.

        A rollout that was sealed with an exit reason in `repeat` is run again: its next attempt replaces the sealed
        trajectory once it is sealed itself. `CANCELLED` stands also for rollouts whose reward was skipped because the
        caller had left. With `repeat=()` every sealed rollout is done. A task that asks something else than the task
        that was sealed under its id is told to the logger `agentkit.journal`, once, when it is sealed.

        `writer="thread"` writes on a thread of its own; `"inline"` on the event loop, as virtual time needs it.

        Raises:
            ConfigError: an option has another value than the type allows.
            JournalError: another writer has the file, or it cannot be opened or closed.
        Cancellation: what was handed in is written before the file is closed.
        """
        if writer not in ("thread", "inline") or synchronous not in ("NORMAL", "FULL"):
            raise ConfigError(
                f"writer must be 'thread' or 'inline' and synchronous 'NORMAL' or 'FULL', "
                f"found {writer!r} and {synchronous!r}"
            )
        repeated = exit_reasons(repeat)
        path = journal_path(run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalError(f"cannot make the folder of journal {str(path)!r}: {error}") from error
        codec = Codec()
        store = Store(path, synchronous, codec, repeated)
        try:
            reader = JournalReader.open(path)
            hand = ThreadWriter(store, codec) if writer == "thread" else InlineWriter(store, codec)
        except BaseException:
            store.close()
            raise
        journal = cls(reader, hand, repeated)
        try:
            yield journal
        finally:
            await journal._close()

    async def begin(self, key: RolloutKey, /) -> None:
        """An attempt at a rollout starts; it supersedes the earlier ones, but for a sealed one that it repeats.

        Raises:
            InvariantError: the rollout is sealed and not to be repeated, or this attempt or a later one has begun.
            JournalError: the record could not be written.
        Cancellation: the record is written all the same.
        """
        await self._submit(Begin(key))

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        """A turn is complete. The same turn again is ignored if it is byte for byte the same.

        Raises:
            InvariantError: the attempt is sealed or not the newest of its rollout, the turn is there with other
                content, or a delta does not begin where its chain ends.
            JournalError: the record could not be written.
        Cancellation: the record is written all the same.
        """
        await self._submit(Append(key, turn, tuple(deltas)))

    async def seal(self, trajectory: Trajectory, /) -> None:
        """The rollout has ended. The same trajectory again is ignored if it is byte for byte the same.

        A later attempt at a rollout that is to be repeated replaces the trajectory of the earlier one, in one step.

        Raises:
            InvariantError: the rollout is sealed with another trajectory for good, or a later attempt has begun.
            JournalError: the record could not be written.
        Cancellation: the record is written all the same.
        """
        await self._submit(Seal(trajectory))

    def sealed(self) -> set[tuple[str, int]]:
        """(task_id, index) of every rollout that is done: sealed, and not to be repeated.

        Raises:
            JournalError: the file cannot be read.
        """
        return self.reader.sealed(repeat=self._repeat)

    def next_attempt(self, task_id: str, index: int) -> int:
        """The number for the next attempt at a rollout: 0 where none has begun.

        Raises:
            JournalError: the file cannot be read.
        """
        return self.reader.next_attempt(task_id, index)

    async def _submit(self, operation: Operation) -> None:
        if self._closed:
            raise JournalError(f"journal {str(self.reader.path)!r} is closed")
        await self._writer.submit(operation)

    async def _close(self) -> None:
        self._closed = True
        with sqlite_errors(self.reader.path, "close"):
            self.reader.close()
        with anyio.move_on_after(_CLOSE_S, shield=True) as scope:
            await self._writer.close()
        if scope.cancelled_caught:
            raise JournalError(f"journal {str(self.reader.path)!r} was not closed within {_CLOSE_S:.0f} s")
