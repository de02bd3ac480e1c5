"""The file: its schema and version, how it is opened for writing or reading, and who may write.

A journal is one SQLite file in WAL mode, so that readers never wait for the writer. The writer holds an exclusive lock
on a second, empty file beside it for as long as it lives. That lock is SQLite's own: it dies with the process, is not
inherited by forked children, and works between two journals of one process. A journal that is closed in good order is
turned back into a single file without `-wal`, which can be copied or put in a read-only folder.
"""

import os
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

from agentkit.journal.errors import JournalError

FILE_NAME = "journal.sqlite"
SCHEMA_VERSION = 2
"""1: a fork holds the tokens that it shares with its parent. 2: it does not; a file of 1 is read and continued."""

Synchronous: TypeAlias = Literal["NORMAL", "FULL"]

_APPLICATION_ID = 0x41674B4A  # "AgKJ": tells `file` and us that this SQLite file is a journal
_BUSY_S = 5.0

_SCHEMA = """
CREATE TABLE writer (pid INTEGER NOT NULL, host TEXT NOT NULL);
CREATE TABLE attempts (
    id INTEGER PRIMARY KEY, task_id NOT NULL, sample_index INTEGER NOT NULL, attempt INTEGER NOT NULL,
    UNIQUE (task_id, sample_index, attempt)
);
CREATE TABLE turns (
    attempt_id INTEGER NOT NULL, turn INTEGER NOT NULL, record NOT NULL, digest BLOB NOT NULL,
    PRIMARY KEY (attempt_id, turn)
);
CREATE TABLE deltas (
    attempt_id INTEGER NOT NULL, chain INTEGER NOT NULL, turn INTEGER NOT NULL, ordinal INTEGER NOT NULL,
    start INTEGER NOT NULL, length INTEGER NOT NULL, record NOT NULL, tokens BLOB NOT NULL,
    PRIMARY KEY (attempt_id, chain, turn, ordinal)
);
CREATE TABLE trajectories (
    id INTEGER PRIMARY KEY, task_id NOT NULL, sample_index INTEGER NOT NULL, attempt INTEGER NOT NULL,
    exit_reason TEXT NOT NULL, blame TEXT, grade TEXT, score REAL, outcome TEXT NOT NULL, turns INTEGER NOT NULL,
    tokens INTEGER NOT NULL, sampled INTEGER NOT NULL, seconds REAL, record NOT NULL, digest BLOB NOT NULL,
    UNIQUE (task_id, sample_index)
);
CREATE TABLE chains (
    trajectory_id INTEGER NOT NULL, ordinal INTEGER NOT NULL, tokens BLOB NOT NULL,
    PRIMARY KEY (trajectory_id, ordinal)
);
"""
# Came later. Who does not know it does well without, so it is no new version of the schema.
_TASKS = "CREATE TABLE IF NOT EXISTS tasks (task_id PRIMARY KEY NOT NULL, digest BLOB NOT NULL)"
_MEDIA = "CREATE TABLE IF NOT EXISTS media (digest BLOB PRIMARY KEY NOT NULL, data BLOB NOT NULL) WITHOUT ROWID"


def journal_path(run: "str | os.PathLike[str]") -> Path:
    """The journal of a run, named by its folder or by the file itself."""
    path = Path(run)
    return path / FILE_NAME if path.is_dir() else path


@contextmanager
def sqlite_errors(path: Path, doing: str) -> Iterator[None]:
    """Turns what SQLite raises into a `JournalError` that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise journal_error(path, doing, error) from error


def journal_error(path: Path, doing: str, error: BaseException) -> JournalError:
    """What went wrong, in the caller's terms; a full disk and a busy file may pass."""
    name = getattr(error, "sqlite_errorname", "") or type(error).__name__
    retryable = name.startswith(("SQLITE_FULL", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_IOERR"))
    return JournalError(f"cannot {doing} journal {str(path)!r}: {error} ({name})", retryable=retryable)


def lock(path: Path) -> sqlite3.Connection:
    """The right to write `path`, held until the returned connection is closed or the process dies.

    Raises:
        JournalError: another journal, here or in another process, is writing it.
    """
    beside = path.with_name(f"{path.name}-lock")
    with sqlite_errors(beside, "open the lock of"):
        holder = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        holder.execute("PRAGMA journal_mode = MEMORY")  # no third file
        holder.execute("BEGIN EXCLUSIVE")
    except sqlite3.Error as error:
        holder.close()
        if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise JournalError(f"journal {str(path)!r} is being written by {_writer(path)}", retryable=True) from error
        raise journal_error(beside, "lock", error) from error
    return holder


def _writer(path: Path) -> str:
    with suppress(sqlite3.Error, JournalError), closing(open_reading(path)) as connection:
        row = connection.execute("SELECT pid, host FROM writer").fetchone()
        if row is not None:
            return f"process {row[0]} on {row[1]!r}"
    return "another process"


def open_writing(path: Path, synchronous: Synchronous) -> sqlite3.Connection:
    """A connection to the journal at `path`, made where there is none. The caller holds the lock.

    Raises:
        JournalError: the file is no journal, is damaged, or was written by a newer version.
    """
    with sqlite_errors(path, "open"):
        connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _check(path, connection, may_be_new=True)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {synchronous}")
            connection.execute("PRAGMA temp_store = MEMORY")
            connection.execute("BEGIN IMMEDIATE")
            if not _tables(connection):
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            connection.execute(_TASKS)
            connection.execute(_MEDIA)
            connection.execute("DELETE FROM writer")
            connection.execute("INSERT INTO writer VALUES (?, ?)", (os.getpid(), socket.gethostname()))
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
    return connection


def close_writing(connection: sqlite3.Connection) -> None:
    """Close, leaving a single file where no reader has it open."""
    with suppress(sqlite3.Error):  # a reader is there, or the disk is full: the -wal stays, which is as durable
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def open_reading(path: Path) -> sqlite3.Connection:
    """A read-only connection, beside a living writer, after a crash, or to a copy in a read-only folder.

    Raises:
        JournalError: there is no such file, it is no journal, is damaged, or was written by a newer version.
    """
    if not path.is_file():
        raise JournalError(f"no journal at {str(path)!r}")
    log = path.with_name(f"{path.name}-wal")
    with sqlite_errors(path, "read"):
        try:
            return _connect_reading(path, "mode=ro")
        except sqlite3.OperationalError:
            # a folder where SQLite cannot make its shared memory; without a log the file alone is whole
            if log.exists() and log.stat().st_size:
                raise
            return _connect_reading(path, "mode=ro&immutable=1")


def _connect_reading(path: Path, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check(path, connection, may_be_new=False)
    except BaseException:
        connection.close()
        raise
    return connection


def _tables(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return int(count)


def _check(path: Path, connection: sqlite3.Connection, *, may_be_new: bool) -> None:
    tables = _tables(connection)
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if not tables and application == 0 and may_be_new:
        return
    if application != _APPLICATION_ID:
        raise JournalError(f"{str(path)!r} is a SQLite file but no agentkit journal")
    if version > SCHEMA_VERSION:
        raise JournalError(
            f"journal {str(path)!r} has schema {version}, this agentkit reads up to {SCHEMA_VERSION}: "
            "it was written by a newer version"
        )
