"""Reads a journal: while it is written, after a crash, or from a copy."""

import os
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from attrs import frozen

from agentkit.errors import InvariantError
from agentkit.journal.codec import Codec, Text, decode_text, encode_text
from agentkit.journal.database import journal_path, open_reading, sqlite_errors
from agentkit.journal.errors import JournalError
from agentkit.journal.repeat import ENDING, is_repeated
from agentkit.protocols import Chain, ChainDelta, ExitReason, RolloutKey, Trajectory, Turn
from agentkit.tokens import join


@frozen
class Summary:
    """One line about a sealed trajectory, read without its tokens. `grade` is the status of its grade."""

    key: RolloutKey
    exit_reason: ExitReason
    blame: str | None
    grade: str | None
    score: float | None
    outcome: str
    turns: int
    tokens: int
    sampled: int
    seconds: float


@frozen
class Unfinished:
    """The newest attempt of a rollout, which has begun and was not sealed, as far as it got."""

    key: RolloutKey
    turns: tuple[Turn, ...]
    chains: tuple[Chain, ...]


class JournalReader:
    """A journal, read-only: `with JournalReader.open(run) as reader`. Used by one thread at a time."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._codec = Codec()

    @classmethod
    def open(cls, run: "str | os.PathLike[str]") -> "JournalReader":
        """The journal of `run`: its folder or the file. A writer may be at work, and is never made to wait.

        Raises:
            JournalError: there is none, it is damaged, or a newer version wrote it.
        """
        path = journal_path(run)
        return cls(path, open_reading(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def sealed(self, *, repeat: "Collection[ExitReason]" = ()) -> set[tuple[str, int]]:
        """(task_id, index) of every rollout that has its trajectory, but for those that `Journal.open` would repeat.

        Raises:
            JournalError: the file cannot be read.
        """
        with sqlite_errors(self.path, "read"):
            return {  # row by row: what decides may be the whole record
                (decode_text(task_id), index)
                for task_id, index, *ending in self._connection.execute(_SEALED)
                if not is_repeated(repeat, (ending[0], ending[1]), self._codec)
            }

    def summaries(self) -> Iterator[Summary]:
        """A line about each trajectory, in the order sealed.

        Raises:
            JournalError: the file cannot be read.
        """
        for task_id, index, attempt, reason, *rest in self._all(_SUMMARIES):
            yield Summary(RolloutKey(decode_text(task_id), index, attempt), ExitReason(reason), *rest)

    def trajectories(self, *, tokens: bool = True) -> Iterator[Trajectory]:
        """Every trajectory sealed by now, in the order sealed; one in memory at a time.

        Without `tokens` their chains have spans but neither ids, mask nor log-probabilities, and are not even read.

        Raises:
            JournalError: the file cannot be read or a record is damaged.
        """
        # By rollout, not by row: a repeated rollout gets another row meanwhile, but always has one.
        for task_id, index in self._all("SELECT task_id, sample_index FROM trajectories ORDER BY id"):
            trajectory = self._trajectory(task_id, index, tokens=tokens)
            if trajectory is not None:
                yield trajectory

    def trajectory(self, task_id: str, index: int, *, tokens: bool = True) -> Trajectory | None:
        """The trajectory of a rollout, None where it is not sealed; `tokens` as for `trajectories`.

        Raises:
            JournalError: the file cannot be read or the record is damaged.
        """
        return self._trajectory(encode_text(task_id), index, tokens=tokens)

    def unfinished(self) -> tuple[Unfinished, ...]:
        """The newest attempt of every rollout, where it is not sealed, in the order begun.

        An earlier attempt may be: a rollout that is repeated keeps its sealed trajectory until the next is sealed.

        Raises:
            JournalError: the file cannot be read or a record is damaged.
        """
        with self._snapshot():
            return tuple(map(self._unfinished, self._all(_UNFINISHED)))

    def unfinished_keys(self) -> tuple[RolloutKey, ...]:
        """The newest attempt of every rollout, where it is not sealed, in the order begun; nothing else of it is read.

        Raises:
            JournalError: the file cannot be read.
        """
        return tuple(
            RolloutKey(decode_text(task_id), index, attempt) for _, task_id, index, attempt in self._all(_UNFINISHED)
        )

    def next_attempt(self, task_id: str, index: int) -> int:
        """The number for the next attempt at a rollout: 0 where none has begun.

        Raises:
            JournalError: the file cannot be read.
        """
        ((newest,),) = self._all(
            "SELECT max(attempt) FROM attempts WHERE task_id=? AND sample_index=?", encode_text(task_id), index
        )
        return 0 if newest is None else int(newest) + 1

    def _trajectory(self, task_id: Text, index: int, *, tokens: bool) -> Trajectory | None:
        with self._snapshot():
            found = self._all(_TRAJECTORY, task_id, index)
            if not found:
                return None
            ((row_id, record),) = found
            rows = self._all(_TOKENS if tokens else _NO_TOKENS, row_id)
        try:
            return self._codec.decode_trajectory(record, [blob for (blob,) in rows], self._medium)
        except JournalError as error:
            raise JournalError(f"trajectory {row_id} of journal {str(self.path)!r}: {error}") from error

    def _unfinished(self, row: "tuple[Any, ...]") -> Unfinished:
        attempt_id, task_id, index, attempt = row
        key = RolloutKey(decode_text(task_id), index, attempt)
        turns = self._all("SELECT record FROM turns WHERE attempt_id=? ORDER BY turn", attempt_id)
        deltas = self._all(_DELTAS, attempt_id)
        try:
            pieces = [
                ChainDelta(chain, start, self._codec.decode_piece(record, blob))
                for chain, start, record, blob in deltas
            ]
            made = tuple(self._codec.decode_turn(record, self._medium) for (record,) in turns)
            return Unfinished(key, made, join(pieces))
        except (JournalError, InvariantError) as error:
            raise JournalError(f"attempt {attempt} of {key} in journal {str(self.path)!r}: {error}") from error

    def _medium(self, digest: bytes) -> bytes | None:
        found = self._all("SELECT data FROM media WHERE digest=?", digest)  # never deleted, so no snapshot is needed
        return found[0][0] if found else None

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Several statements see one state of the file: a seal deletes what it supersedes."""
        with sqlite_errors(self.path, "read"):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    def _all(self, statement: str, *values: object) -> "list[tuple[Any, ...]]":
        with sqlite_errors(self.path, "read"):
            return self._connection.execute(statement, values).fetchall()


_SEALED = f"SELECT task_id, sample_index, {ENDING} FROM trajectories"  # noqa: S608
_TRAJECTORY = "SELECT id, record FROM trajectories WHERE task_id=? AND sample_index=?"
_TOKENS = "SELECT tokens FROM chains WHERE trajectory_id=? ORDER BY ordinal"
_NO_TOKENS = "SELECT NULL FROM chains WHERE trajectory_id=?"
_SUMMARIES = """
SELECT task_id, sample_index, attempt, exit_reason, blame, grade, score, outcome, turns, tokens, sampled, seconds
FROM trajectories ORDER BY id
"""
_UNFINISHED = """
SELECT id, task_id, sample_index, attempt FROM attempts AS this
WHERE NOT EXISTS (
    SELECT 1 FROM trajectories AS t
    WHERE t.task_id=this.task_id AND t.sample_index=this.sample_index AND t.attempt>=this.attempt
)
AND attempt = (SELECT max(attempt) FROM attempts AS a WHERE a.task_id=this.task_id AND a.sample_index=this.sample_index)
ORDER BY id
"""
_DELTAS = "SELECT chain, start, record, tokens FROM deltas WHERE attempt_id=? ORDER BY turn, ordinal"
