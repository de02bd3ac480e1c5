"""Both back ends, and what the tests of both look at."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agentkit.protocols import SandboxBackend
from agentkit.sandbox import BwrapBackend, HostBackend


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where host sandboxes put their directories, so that a test can see what is left there."""
    path = tmp_path / "scratch"
    path.mkdir()
    return path


def _bwrap() -> BwrapBackend:
    if shutil.which("bwrap") is None:
        # On a developer's machine the rest is still worth running; a build must not pass without the isolation tests.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("bubblewrap is not installed")
    return BwrapBackend()


@pytest.fixture(params=["bwrap", "host"])
def backend(request: pytest.FixtureRequest, scratch: Path) -> SandboxBackend:
    if request.param == "host":
        return HostBackend(directory=scratch)
    return _bwrap()


@pytest.fixture
def bwrap() -> BwrapBackend:
    return _bwrap()


def _processes(pattern: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if pattern.encode() in command.replace(b"\0", b" "):
                found.append(int(entry))
    return found


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    """The pids whose command line contains a text."""
    return _processes
