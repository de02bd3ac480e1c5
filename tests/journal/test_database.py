"""Opening: one writer, versions, damage, copies."""

import os
import pickle
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agentkit.journal import SCHEMA_VERSION, Journal, JournalError, JournalReader, journal_path
from agentkit.protocols import Chain, ExitReason, RolloutKey, Trajectory

SEALED = Trajectory(RolloutKey("task", 0), (), (), (), ExitReason.FINISHED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


async def make(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(SEALED)


def read(path: Path) -> list[Trajectory]:
    with JournalReader.open(path) as reader:
        return list(reader.trajectories())


async def test_two_journals_on_one_file_are_refused(path: Path) -> None:
    async with Journal.open(path, writer="inline"):
        with pytest.raises(JournalError, match=rf"is being written by process {os.getpid()} on") as caught:
            async with Journal.open(path, writer="inline"):
                pass
        assert caught.value.retryable
    await make(path)  # the lock ends with the journal


@pytest.mark.slow
async def test_two_processes_on_one_file_are_refused(path: Path) -> None:
    program = (
        "import anyio, sys\nfrom agentkit.journal import Journal\n"
        "async def main():\n    async with Journal.open(sys.argv[1], writer='inline'):\n        print('wrote')\n"
        "anyio.run(main)"
    )
    command = [sys.executable, "-c", program, str(path)]
    async with Journal.open(path, writer="inline"):
        other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert other.returncode == 1
    assert f"is being written by process {os.getpid()}" in other.stderr
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "wrote\n"


async def test_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    await make(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    with pytest.raises(JournalError, match=f"schema {SCHEMA_VERSION + 1}.*newer version"):
        read(path)
    with pytest.raises(JournalError, match="newer version"):
        await make(path)
    assert path.read_bytes() == before


async def test_other_sqlite_file_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.commit()
    before = path.read_bytes()
    with pytest.raises(JournalError, match="no agentkit journal"):
        read(path)
    with pytest.raises(JournalError, match="no agentkit journal"):
        await make(path)
    assert path.read_bytes() == before


async def test_missing_file_is_not_made_by_a_reader(path: Path) -> None:
    with pytest.raises(JournalError, match="no journal at"):
        JournalReader.open(path)
    with pytest.raises(JournalError, match="no journal at"):
        JournalReader.open(path.parent)
    assert not path.exists()


async def test_file_that_is_no_database_is_a_clear_error(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to look at" * 50)
    with pytest.raises(JournalError, match=r"SQLITE_NOTADB"):
        read(path)
    with pytest.raises(JournalError, match=r"SQLITE_NOTADB"):
        await make(path)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trajectories SET record = substr(record, 1, 20)",
        "UPDATE chains SET tokens = x'00'",
        "DELETE FROM chains",
    ],
)
async def test_damaged_record_names_the_file(path: Path, damage: str, tmp_path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(Trajectory(RolloutKey("t", 0), (), (Chain.of([1], [0], [0]),), (), ExitReason.FINISHED))
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(damage)
        connection.commit()
    with pytest.raises(JournalError, match=r"trajectory 1 of journal '.*journal.sqlite'"):
        read(path)


async def test_overwritten_pages_are_a_clear_error(path: Path) -> None:
    await make(path)
    data = bytearray(path.read_bytes())
    data[4096:] = os.urandom(len(data) - 4096)
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"cannot read journal .*SQLITE_CORRUPT"):
        read(path)


async def test_copy_of_a_closed_journal_opens_read_only(path: Path, tmp_path: Path) -> None:
    await make(path)
    folder = tmp_path / "a copy?with %20 odd#name"
    folder.mkdir()
    shutil.copy(path, folder / "other.sqlite")
    (folder / "other.sqlite").chmod(0o400)
    folder.chmod(0o500)
    try:
        assert read(folder / "other.sqlite") == [SEALED]
        assert [child.name for child in folder.iterdir()] == ["other.sqlite"]
    finally:
        folder.chmod(0o700)


async def test_copy_of_a_live_journal_has_what_was_committed(path: Path, tmp_path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(SEALED)
        copy = tmp_path / "copy"
        copy.mkdir()
        for name in ("journal.sqlite", "journal.sqlite-wal"):
            shutil.copy(tmp_path / name, copy / name)
    assert read(copy) == [SEALED]


async def test_copy_without_the_log_opens_in_a_read_only_folder(path: Path, tmp_path: Path) -> None:
    await make(path)
    copy = tmp_path / "copy"
    copy.mkdir()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        shutil.copy(path, copy)
    copy.chmod(0o500)
    try:
        assert read(copy) == [SEALED]
    finally:
        copy.chmod(0o700)


async def test_reader_beside_a_writer_sees_each_commit(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        with JournalReader.open(path) as reader:
            assert reader.sealed() == set()
            await journal.seal(SEALED)
            assert reader.sealed() == {("task", 0)}
            trajectories = reader.trajectories()
            assert next(trajectories) == SEALED  # a reader in mid-iteration does not hold up the writer
            await journal.begin(RolloutKey("other", 0))
    assert read(path) == [SEALED]


async def test_broken_off_creation_is_taken_up(path: Path) -> None:
    path.touch()
    with pytest.raises(JournalError, match="no agentkit journal"):
        read(path)
    await make(path)
    assert read(path) == [SEALED]


def test_run_is_named_by_folder_or_file(tmp_path: Path, path: Path) -> None:
    assert journal_path(tmp_path) == path
    assert journal_path(path) == path


def test_errors_pickle() -> None:
    error = pickle.loads(pickle.dumps(JournalError("x", retryable=True)))
    assert (str(error), error.retryable) == ("x", True)
