"""`agentkit sandbox`: what runs here, what is registered, what is removed."""

import os
import subprocess
from pathlib import Path

import pytest

from agentkit.cli.main import main
from agentkit.errors import SandboxError
from agentkit.protocols import Capabilities, Sandbox, SandboxSpec
from agentkit.sandbox import Entry, Registry
from agentkit.sandbox.leaks import owner


class Fine:
    capabilities = Capabilities(isolated=True, image=True, limits=frozenset({"cpus"}))

    def available(self) -> str | None:
        return None

    def shortcomings(self) -> tuple[str, ...]:
        return ("no snapshots: the kernel is too old\nuse a newer \x1b[31mone",)

    async def start(self, spec: SandboxSpec, /) -> Sandbox:
        raise SandboxError("not today")

    @classmethod
    async def remove(cls, entry: Entry) -> None:
        if entry.name == "stuck":
            raise SandboxError("it is stuck\x1b[31m")


class Broken(Fine):
    def available(self) -> str | None:
        return "'podman' is not installed\napt-get install podman"


class Far(Fine):
    def __init__(self, url: str) -> None:
        self.url = url


@pytest.fixture(autouse=True)
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("AGENTKIT_STATE", str(tmp_path / "book"))
    return Registry()


def a_dead_owner() -> str:
    child = subprocess.Popen(["true"])
    gone = owner().replace(f".{os.getpid()}.", f".{child.pid}.")
    child.wait()
    return gone


def test_doctor_tells_what_runs_and_what_does_not(capsys: pytest.CaptureFixture[str]):
    assert main(["sandbox", "doctor", f"{__name__}:Fine"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{__name__}:Fine  yes: isolated, image, network none, limits cpus",
        f"{'':<{len(__name__) + 5}}    - no snapshots: the kernel is too old",
        f"{'':<{len(__name__) + 5}}      use a newer \\x1b[31mone",
    ]
    assert main(["sandbox", "doctor", f"{__name__}:Fine", f"{__name__}:Broken", f"{__name__}:Far"]) == 1
    text = capsys.readouterr().out
    assert "Broken  no: 'podman' is not installed" in text
    assert "    apt-get install podman" in text
    assert "Far     ? needs url: not checked" in text


def test_doctor_takes_the_options_of_one_type(capsys: pytest.CaptureFixture[str]):
    assert main(["sandbox", "doctor", "podman", "--set", "command=no-such-engine"]) == 1
    assert "'no-such-engine' is not installed" in capsys.readouterr().out
    assert main(["sandbox", "doctor", "podman", "--set", "comand=x"]) == 1
    assert "did you mean 'command'?" in capsys.readouterr().err
    assert main(["sandbox", "doctor", "--set", "command=x"]) == 1
    assert "--set goes with one TYPE, found 0" in capsys.readouterr().err


def test_doctor_of_what_there_is_not(capsys: pytest.CaptureFixture[str]):
    assert main(["sandbox", "doctor", "bwrp"]) == 1
    assert "did you mean 'bwrap'?" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_doctor_of_everything_that_is_installed(capsys: pytest.CaptureFixture[str]):
    main(["sandbox", "doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("host ") and "yes: NO ISOLATION" in line]
    assert [line for line in lines if line.startswith("bwrap ")]


@pytest.mark.slow
def test_gc_removes_what_is_the_deads(book: Registry, capsys: pytest.CaptureFixture[str]):
    kind = f"{__name__}:Fine"
    book.add(kind, "alive")
    gone = a_dead_owner()
    book._write(Entry(type=kind, name="left", owner=gone))
    assert main(["sandbox", "gc"]) == 0
    assert f"removed {kind} left\n" in capsys.readouterr().out
    book._write(Entry(type=kind, name="stuck", owner=gone))
    assert main(["sandbox", "gc"]) == 1
    assert f"could not remove {kind} stuck: it is stuck\\x1b[31m\n" in capsys.readouterr().out
    assert sorted(entry.name for entry in book.entries()) == ["alive", "stuck"]


def test_list_shows_what_is_registered(book: Registry, capsys: pytest.CaptureFixture[str]):
    assert main(["sandbox", "list"]) == 0
    assert capsys.readouterr().out == "no sandbox is registered\n"
    book.add("podman", "mine", lifetime_s=3600)
    book._write(Entry(type="podman", name="theirs", owner=a_dead_owner()))
    assert main(["sandbox", "list"]) == 0
    mine, theirs = capsys.readouterr().out.splitlines()
    assert mine.startswith(f"podman  mine  owner {os.getpid()}, 3")
    assert theirs == "podman  theirs  its owner has ended"


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["sandbox"])
    assert caught.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
