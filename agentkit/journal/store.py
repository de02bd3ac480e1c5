"""Applies records to the file, many to a commit, and refuses those that break R2.

The file is the only state: every check is a look into an index within the same transaction, so a commit that fails
leaves nothing behind that the next one could trip over.
"""

import logging
import sqlite3
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from agentkit.errors import AgentkitError, InvariantError
from agentkit.journal.codec import Codec, encode_text
from agentkit.journal.database import Synchronous, close_writing, journal_error, lock, open_writing
from agentkit.journal.records import Append, Begin, Prepared, Seal, token_counts
from agentkit.journal.repeat import ENDING, is_repeated
from agentkit.protocols import ChainDelta, ExitReason, RolloutKey

logger = logging.getLogger("agentkit.journal")

_CHAIN_LENGTH = """
SELECT start + length FROM deltas WHERE attempt_id=? AND chain=? ORDER BY turn DESC, ordinal DESC LIMIT 1
"""
_SEALED = f"SELECT id, attempt, digest, {ENDING} FROM trajectories WHERE task_id=? AND sample_index=?"  # noqa: S608


class _Sealed(NamedTuple):
    """What a check needs to know of the sealed trajectory of a rollout."""

    row_id: int
    attempt: int
    digest: bytes
    repeated: bool
    """Whether a later attempt may take its place."""


class Store:
    """One journal file, open for writing. Used by one thread at a time."""

    def __init__(
        self, path: Path, synchronous: Synchronous, codec: Codec, repeat: "Collection[ExitReason]" = ()
    ) -> None:
        """Open `path`, making it where there is none. A sealed rollout that ended for a reason in `repeat` may go on.

        Raises:
            JournalError: another writer has it, or it cannot be opened.
        """
        self.path = path
        self._codec = codec
        self._repeat = repeat
        self._changed: list[str] = []
        self._warned = False
        self._lock = lock(path)
        try:
            self._connection = open_writing(path, synchronous)
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Close the file and let others write."""
        try:
            close_writing(self._connection)
        finally:
            self._lock.close()

    def commit(self, records: Sequence[Prepared]) -> list[AgentkitError | None]:
        """Write `records` in order, in one transaction; for each, None once it is durable, or why it is not there.

        One record that is refused leaves the others alone; what ails the file fails them all.
        """
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            results = [self._apply_alone(record) for record in records]
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            return [journal_error(self.path, "write", error) for _ in records]
        self._warn_of_changed_tasks()
        return results

    def _apply_alone(self, record: Prepared) -> AgentkitError | None:
        connection = self._connection
        connection.execute("SAVEPOINT record")
        try:
            self._apply(record)
        except sqlite3.OperationalError:
            raise
        except Exception as error:  # this record's own fault: refused, too big for a column, not encodable
            connection.execute("ROLLBACK TO record")
            connection.execute("RELEASE record")
            return error if isinstance(error, AgentkitError) else journal_error(self.path, "write", error)
        connection.execute("RELEASE record")
        return None

    def _apply(self, record: Prepared) -> None:
        match record.operation:
            case Begin():
                self._begin(record.key)
            case Append():
                self._append(record, record.operation)
            case Seal():
                self._seal(record, record.operation)

    def _begin(self, key: RolloutKey) -> None:
        sealed = self._sealed(key)
        if sealed is not None and not sealed.repeated:
            raise InvariantError(f"{key} begins attempt {key.attempt} after it was sealed")
        newest = self._newest(key)
        if newest is not None and key.attempt <= newest:
            raise InvariantError(f"{key} begins attempt {key.attempt}, but attempt {newest} has begun already")
        self._insert_attempt(key)

    def _append(self, record: Prepared, append: Append) -> None:
        key, turn, encoded = record.key, append.turn, record.encoded
        sealed = self._sealed(key)
        if sealed is not None and not (sealed.repeated and key.attempt > sealed.attempt):
            raise InvariantError(f"{key} appends turn {turn.index} after it was sealed")
        newest = self._newest(key)
        if newest != key.attempt:
            raise InvariantError(f"{key} appends turn {turn.index} to attempt {key.attempt}, the newest is {newest}")
        attempt_id = self._value("SELECT id FROM attempts WHERE task_id=? AND sample_index=? AND attempt=?", *_row(key))
        written = self._value("SELECT digest FROM turns WHERE attempt_id=? AND turn=?", attempt_id, turn.index)
        if written is not None:
            if written == encoded.digest:
                return
            raise InvariantError(f"{key} appends turn {turn.index} of attempt {key.attempt} twice, with other content")
        last = self._value("SELECT max(turn) FROM turns WHERE attempt_id=?", attempt_id)
        if last is not None and turn.index < last:
            raise InvariantError(f"{key} appends turn {turn.index} of attempt {key.attempt} after turn {last}")
        self._keep_media(record)
        self._run("INSERT INTO turns VALUES (?, ?, ?, ?)", attempt_id, turn.index, encoded.record, encoded.digest)
        for ordinal, (delta, piece, blob) in enumerate(zip(append.deltas, record.pieces, encoded.blobs, strict=True)):
            length = self._value(_CHAIN_LENGTH, attempt_id, delta.chain)
            if length is None:
                length = self._inherited(attempt_id, delta)
            if delta.start != length:
                raise InvariantError(
                    f"{key} appends tokens from {delta.start} on to chain {delta.chain}, which has {length} so far"
                )
            row = (attempt_id, delta.chain, turn.index, ordinal, delta.start, len(delta.piece), piece, blob)
            self._run("INSERT INTO deltas VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)

    def _inherited(self, attempt_id: int, first: ChainDelta) -> int:
        """How many tokens of a chain that begins with `first` are its parent's, and not written again."""
        parent = first.piece.parent
        if parent is None or first.start != parent[1]:
            return 0
        have = self._value(_CHAIN_LENGTH, attempt_id, parent[0]) or 0
        return parent[1] if parent[0] < first.chain and parent[1] <= have else 0

    def _seal(self, record: Prepared, seal: Seal) -> None:
        key, trajectory, encoded = record.key, seal.trajectory, record.encoded
        sealed = self._sealed(key)
        if sealed is not None:
            if sealed.digest == encoded.digest:
                return
            if not (sealed.repeated and key.attempt > sealed.attempt):
                raise InvariantError(f"{key} is sealed twice, with another trajectory")
        newest = self._newest(key)
        if newest is None or newest < key.attempt:  # an end before the attempt could begin
            self._insert_attempt(key)
        elif newest > key.attempt:
            raise InvariantError(f"{key} is sealed as attempt {key.attempt}, but attempt {newest} has begun")
        if sealed is not None:  # in the same transaction: there is one at every moment
            self._run("DELETE FROM chains WHERE trajectory_id=?", sealed.row_id)
            self._run("DELETE FROM trajectories WHERE id=?", sealed.row_id)
        self._compare_task(key, record.task_digest)
        self._keep_media(record)
        tokens, sampled = token_counts([trajectory])
        grade = trajectory.grade
        values = {
            **dict(zip(("task_id", "sample_index", "attempt"), _row(key), strict=True)),
            "exit_reason": trajectory.exit_reason.value,
            "blame": None if trajectory.blame is None else trajectory.blame.value,
            "grade": None if grade is None else grade.status.value,
            "score": None if trajectory.score is None else float(trajectory.score),
            "outcome": trajectory.outcome.value,
            "turns": len(trajectory.turns),
            "tokens": tokens,
            "sampled": sampled,
            "seconds": float(trajectory.timings.total_s),
            "record": encoded.record,
            "digest": encoded.digest,
        }
        columns, marks = ", ".join(values), ", ".join("?" * len(values))
        cursor = self._run(f"INSERT INTO trajectories ({columns}) VALUES ({marks})", *values.values())  # noqa: S608
        for ordinal, blob in enumerate(encoded.blobs):
            self._run("INSERT INTO chains VALUES (?, ?, ?)", cursor.lastrowid, ordinal, blob)
        # the trajectory holds all that the turns held: they have done their work
        for table in ("turns", "deltas"):
            self._run(
                f"DELETE FROM {table} WHERE attempt_id IN (SELECT id FROM attempts WHERE task_id=? AND sample_index=?)",  # noqa: S608
                *_row(key)[:2],
            )

    def _keep_media(self, record: Prepared) -> None:
        """Once each, whoever shows them: the rollouts of a group open with the same."""
        for medium in record.encoded.media:
            if self._value("SELECT 1 FROM media WHERE digest=?", medium.digest) is None:
                self._run("INSERT INTO media VALUES (?, ?)", medium.digest, medium.data)

    def _compare_task(self, key: RolloutKey, digest: bytes | None) -> None:
        if digest is None:
            return
        first = self._value("SELECT digest FROM tasks WHERE task_id=?", encode_text(key.task_id))
        if first is None:
            self._run("INSERT INTO tasks VALUES (?, ?)", encode_text(key.task_id), digest)
        elif first != digest:
            self._changed.append(key.task_id)

    def _warn_of_changed_tasks(self) -> None:
        """Once per writer: a thousand changed tasks have one cause."""
        if self._changed and not self._warned:
            self._warned = True
            logger.warning(
                "journal %r holds other tasks under the same ids (messages, data or budget differ): %s; "
                "give a changed task another id, or the run another journal",
                str(self.path),
                ", ".join(map(repr, dict.fromkeys(self._changed))),
            )
        self._changed.clear()

    def _sealed(self, key: RolloutKey) -> _Sealed | None:
        row = self._run(_SEALED, *_row(key)[:2]).fetchone()
        if row is None:
            return None
        row_id, attempt, digest, *ending = row
        return _Sealed(row_id, attempt, digest, is_repeated(self._repeat, (ending[0], ending[1]), self._codec))

    def _newest(self, key: RolloutKey) -> int | None:
        newest: int | None = self._value(
            "SELECT max(attempt) FROM attempts WHERE task_id=? AND sample_index=?", *_row(key)[:2]
        )
        return newest

    def _insert_attempt(self, key: RolloutKey) -> None:
        self._run("INSERT INTO attempts (task_id, sample_index, attempt) VALUES (?, ?, ?)", *_row(key))

    def _value(self, statement: str, *values: object) -> Any:
        row = self._run(statement, *values).fetchone()
        return None if row is None else row[0]

    def _run(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connection.execute(statement, values)


def _row(key: RolloutKey) -> "tuple[str | bytes, int, int]":
    return encode_text(key.task_id), key.index, key.attempt
