"""What must be gone with its owner is written down, and only what is nobody's any more is removed."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import Capabilities
from agentkit.sandbox import Entry, Registry, collect
from agentkit.sandbox.leaks import is_dead, owner

REMOVED: list[str] = []


class Cloud:
    """A back end whose sandboxes are names in a list."""

    capabilities = Capabilities(isolated=True)

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        await anyio.sleep(0.1)
        if entry.data.get("stuck"):
            raise SandboxError("the cloud says no")
        REMOVED.append(entry.name)


class Broken:
    """A back end of somebody's, with a mistake."""

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        await anyio.sleep(0)
        raise KeyError(entry.data["app"])


class Unmindful:
    """A back end that cannot remove."""


CLOUD = f"{__name__}:Cloud"


@pytest.fixture(autouse=True)
def nothing_removed() -> Iterator[None]:
    REMOVED.clear()
    yield
    REMOVED.clear()


@pytest.fixture
def book(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "state" / "book")


def of_the_dead(name: str, kind: str = CLOUD, **data: str) -> Entry:
    child = subprocess.Popen(["true"])
    gone = owner().replace(f".{os.getpid()}.", f".{child.pid}.")
    child.wait()
    assert is_dead(gone)
    return Entry(type=kind, name=name, owner=gone, data=data)


def test_an_entry_is_there_from_before_until_after(book: Registry):
    assert list(book.entries()) == []
    entry = book.add("podman", "agentkit-1", lifetime_s=60, data={"command": "podman"})
    assert list(book.entries()) == [entry]
    assert entry.deadline is not None
    assert abs(entry.deadline - time.time() - 60) < 5
    known = book.update(entry, id="abc")
    assert list(book.entries()) == [known]
    assert known.data == {"command": "podman", "id": "abc"}
    assert Registry(book.directory).due() == []
    book.forget(known)
    book.forget(known)
    assert list(book.entries()) == []


def test_entries_are_for_our_eyes(book: Registry):
    book.add("podman", "agentkit-1")
    assert book.directory.stat().st_mode & 0o777 == 0o700


def test_the_dead_and_the_overdue_are_due(book: Registry):
    mine = book.add("podman", "mine", lifetime_s=60)
    late = Entry(type="podman", name="late", owner=owner(), deadline=time.time() - 61)
    nearly = Entry(type="podman", name="nearly", owner=owner(), deadline=time.time() - 30)
    pid_taken_over = owner().rpartition(".")[0] + ".17"  # our pid, but of a process that started at another time
    earlier = Entry(type="podman", name="earlier", owner=pid_taken_over)
    other_boot = Entry(type="podman", name="boot", owner="0" * 12 + owner()[12:])
    for entry in (late, nearly, earlier, other_boot, of_the_dead("dead", "podman")):
        book._write(entry)
    assert sorted(entry.name for entry in book.due()) == ["boot", "dead", "earlier", "late"]
    assert mine in list(book.entries())


@given(st.binary(max_size=60))
def test_what_is_no_entry_is_passed_over(junk: bytes):
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        book = Registry(Path(directory))
        kept = book.add("podman", "kept")
        (Path(directory) / "podman-junk.json").write_bytes(junk)
        assert list(book.entries()) == [kept]


def test_what_others_put_there_holds_nobody_up(book: Registry, tmp_path: Path):
    kept = book.add("podman", "kept")
    os.mkfifo(book.directory / "podman-fifo.json")  # who opens it waits for ever
    outside = tmp_path / "outside"
    outside.write_text((book.directory / "podman-kept.json").read_text().replace("kept", "link"))
    (book.directory / "podman-link.json").symlink_to(outside)
    (book.directory / "podman-deep.json").write_text("[" * 100_000)
    assert list(book.entries()) == [kept]


def test_an_owner_on_another_machine_may_be_alive(book: Registry):
    gone = of_the_dead("x").owner
    elsewhere = "node-7 pid:[1]"
    alive = Entry(type="podman", name="alive", owner=gone, deadline=time.time() + 60, host=elsewhere)
    late = Entry(type="podman", name="late", owner=gone, deadline=time.time() - 61, host=elsewhere)
    for entry in (alive, late):
        book._write(entry)
    assert sorted(book.entries(), key=lambda entry: entry.name) == [alive, late]
    assert book.due() == [late]
    book.update(alive, id="7")
    assert book.due() == [late]


def test_what_cannot_be_struck_out_keeps_nobody_from_the_rest(book: Registry, caplog: pytest.LogCaptureFixture):
    entry = book.add("podman", "agentkit-1")
    book.directory.rename(book.directory.with_name("gone"))
    book.directory.write_text("a file by now")
    book.forget(entry)
    assert "agentkit-1 is gone, but not struck out" in caplog.text


def test_a_hostile_name_stays_in_the_directory(book: Registry):
    book.add("podman", "../../../etc/passwd")
    assert [path.parent for path in book.directory.rglob("*.json")] == [book.directory]


def test_a_directory_that_cannot_be_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"registry of sandboxes '.*file/book' cannot be written to.*AGENTKIT_STATE"):
        Registry(tmp_path / "file" / "book").add("podman", "x")


def test_the_place_is_told_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path / "a"))
    assert Registry().directory == tmp_path / "a"
    monkeypatch.delenv("AGENTKIT_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert Registry().directory == tmp_path / "agentkit" / "sandboxes"


@pytest.mark.slow
async def test_the_reaper_takes_the_deads_and_nothing_else(book: Registry, tmp_path: Path):
    book.add(CLOUD, "alive")
    for name in ("one", "two"):
        book._write(of_the_dead(name))
    book._write(of_the_dead("three", stuck="yes"))
    book._write(of_the_dead("four", f"{__name__}:Unmindful"))
    book._write(of_the_dead("five", "no.such.module:Cloud"))
    found = await collect(registry=book, directory=tmp_path)
    assert sorted(REMOVED) == ["one", "two"]
    assert found.removed == (f"{CLOUD} one", f"{CLOUD} two")
    assert dict(found.failed) == {
        f"{CLOUD} three": "the cloud says no",
        f"{__name__}:Unmindful four": "Unmindful cannot remove what a killed process left",
        "no.such.module:Cloud five": "type is 'no.such.module:Cloud', and no.such.module:Cloud cannot be imported: "
        "No module named 'no'",
    }
    assert sorted(entry.name for entry in book.entries()) == ["alive", "five", "four", "three"]
    again = await collect(registry=book, directory=tmp_path)
    assert again.removed == ()


@pytest.mark.slow
async def test_an_entry_that_cannot_be_handled_does_not_keep_the_others(book: Registry, tmp_path: Path):
    book._write(of_the_dead("one", f"{__name__}:Broken"))
    book._write(of_the_dead("two", ":nothing"))
    book._write(of_the_dead("three"))
    found = await collect(registry=book, directory=tmp_path)
    assert found.removed == (f"{CLOUD} three",)
    assert [what for what, _ in found.failed] == [":nothing two", f"{__name__}:Broken one"]


@pytest.mark.slow
async def test_a_reaper_of_one_type_leaves_the_others(book: Registry, tmp_path: Path):
    book._write(of_the_dead("one"))
    book._write(of_the_dead("two", "podman"))
    found = await collect(types=(CLOUD,), registry=book)
    assert found.removed == (f"{CLOUD} one",)
    assert [entry.name for entry in book.entries()] == ["two"]
