"""What a process has on this machine, and what of it is left: processes, directories, mounts, descriptors, entries."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentkit.sandbox.leaks import MARKER, PREFIX, owner
from agentkit.sandbox.registry import Registry

DESCRIPTORS = 8
"""So many more are no leak: what an event loop keeps for itself and its threads."""


class Traces:
    """What has come to be since this object was made and still is, of this process and of those it started.

    `mark` is a word on command lines that are looked for on the whole machine, and `directories` are looked into. What
    lives elsewhere, containers say, a back end's own tests add: `lambda: traces.left() + my_containers()`.
    """

    def __init__(self, mark: str, *directories: Path) -> None:
        self.mark = mark
        self._directories = directories
        self._before = {key for key, _ in self._now()}
        self._descriptors = _descriptors()

    def left(self) -> list[str]:
        """What has come since and is still there, each as a line to read; blocks for some milliseconds."""
        found = [line for key, line in dict(self._now()).items() if key not in self._before]
        if _descriptors() > self._descriptors + DESCRIPTORS:
            found.append(f"more than {DESCRIPTORS} open descriptors that were not there before")
        return found

    def _now(self) -> Iterator[tuple[str, str]]:
        """What there is now: what tells it from others, and a line to read."""
        pids = _below(os.getpid()) + [pid for pid in _pids() if self.mark.encode() in _bytes(pid, "cmdline")]
        yield from ((f"{pid} since {_started(pid)}", _told(pid)) for pid in pids)
        lines = belonging(owner())
        ours = (owner(), *map(str, self._directories))  # of all the others on this machine, anybody's may come and go
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        lines += [f"mount {line}" for line in mounts if any(name in line for name in ours)]
        for directory in self._directories:
            lines += [f"in {directory}: {path.name}" for path in directory.iterdir()]
        yield from ((line, line) for line in lines)


def belonging(whose: str) -> list[str]:
    """What carries the name of an owner (`agentkit.sandbox.leaks.owner`): processes, directories and entries."""
    key = f"{MARKER}={whose}".encode()
    found = [_told(pid) for pid in _pids() if key in _bytes(pid, "environ")]
    found += [f"directory {path}" for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}{whose}*")]
    found += [f"entry {entry.type} {entry.name}" for entry in Registry().entries() if entry.owner == whose]
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _bytes(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _told(pid: int) -> str:
    command = _bytes(pid, "cmdline").replace(b"\0", b" ").decode("utf-8", "backslashreplace").strip()
    return f"process {pid} ({command[:200] or 'ended, not waited for'})"


def _started(pid: int) -> str:
    return b"".join(_bytes(pid, "stat").rpartition(b")")[2].split()[19:20]).decode()


def _below(root: int) -> list[int]:
    """The processes that descend from `root`, ended ones that nobody waited for included."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        fields = _bytes(pid, "stat").rpartition(b")")[2].split()
        if fields:
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
