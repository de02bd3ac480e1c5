"""Both back ends, and what the tests of both look at."""

import os
import re
import shutil
import subprocess
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


PROGRAMS = (
    *("bash", "sh", "sleep", "cat", "ls", "mkdir", "rm", "rmdir", "mv", "cp", "ln", "chmod", "chown", "touch", "id"),
    *("head", "tail", "tar", "stat", "find", "sort", "sha256sum", "dirname", "basename", "realpath", "truncate"),
    *("mknod", "mkfifo", "grep", "df", "env", "true", "mount", "wc", "dd", "readlink", "cut", "tr", "chroot", "pwd"),
    *("yes", "seq", "nohup", "setsid", "kill", "stty", "date", "uname", "whoami", "sed", "od", "tee", "false", "uniq"),
    *(
        "awk",
        "nproc",
        "ulimit",
        "unshare",
        "setpriv",
        "pgrep",
        "tty",
        "timeout",
        "xargs",
        "sync",
        "hostname",
        "printf",
        "perl",
        "vi",
        "git",
        "less",
    ),
)


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small root file system: programs of this machine, the libraries that they load, and a tree to work on."""
    root = tmp_path_factory.mktemp("rootfs") / "root"
    for directory in (
        "usr/bin",
        "usr/lib",
        "usr/local",
        "etc",
        "tmp",
        "root",
        "proc",
        "dev",
        "data/a/b/c",
        "data/full",
    ):
        (root / directory).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nother:x:7:7::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\nother:x:7:\n")
    for path in ("data/a/one", "data/a/b/two", "data/a/b/c/three", "data/full/four"):
        (root / path).write_text(f"{path}\n")
    (root / "data/link").symlink_to("a/one")
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        if found is None:
            continue
        program = Path(os.path.realpath(found))
        shutil.copy2(program, root / "usr/bin" / name)
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", listed):
            copied = root / library.lstrip("/")
            if not copied.exists():
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(library, copied)
    return root
