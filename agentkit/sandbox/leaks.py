"""Names that say who made a thing, and the removal of what a killed process left behind.

An owner is boot id + pid + start time of the process: unlike a pid alone it is never used twice. Directories and
processes carry it, from before they exist, so that a later start can tell the living's from the dead's.
"""

import contextlib
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import frozen

MARKER = "AGENTKIT_SANDBOX"
PREFIX = "agentkit-"


@frozen
class Reaped:
    """What was removed."""

    directories: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]


def _start_time(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def owner() -> str:
    """This process, as the middle of a name."""
    return f"{_boot()}.{os.getpid()}.{_start_time(os.getpid())}"


def is_dead(name: str) -> bool:
    """Whether the owner that `name` starts with has ended; False for a name that starts with none."""
    boot, _, rest = name.partition("-")[0].partition(".")
    pid, _, started = rest.partition(".")
    if not (boot and pid.isdecimal() and started.isdecimal()):
        return False
    return boot != _boot() or _start_time(int(pid)) != int(started)


def remove_tree(path: Path) -> None:
    """Remove a directory, following no symlink, also where it holds directories without write permission."""

    def unlock(function: Callable[[str], object], name: str, _error: object) -> None:
        try:
            os.chmod(os.path.dirname(name), 0o700)
            if os.path.isdir(name) and not os.path.islink(name):
                os.chmod(name, 0o700)
                shutil.rmtree(name, ignore_errors=True)
            else:
                function(name)
        except OSError:
            pass

    shutil.rmtree(path, onerror=unlock)


def reap(directory: Path | None = None) -> Reaped:
    """Remove the directories and kill the processes of owners that have ended. Blocks; safe to run at any time."""
    base = directory or Path(tempfile.gettempdir())
    pids = tuple(_kill_orphans())
    removed: list[str] = []
    for path in base.glob(f"{PREFIX}*"):
        try:
            found = path.lstat()
        except OSError:
            continue
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if ours and is_dead(path.name.removeprefix(PREFIX)):
            remove_tree(path)
            removed.append(str(path))
    return Reaped(tuple(removed), pids)


def _kill_orphans() -> list[int]:
    """Kill what bears the mark of a dead owner, and all below it, marked or not.

    All of it is stopped first. A spawner that is busy ending what is below it would otherwise be killed half-way, and
    what it had yet to find, a `setsid` with an empty environment say, would be nobody's any more.
    """
    held: dict[int, int] = {}  # pid -> a descriptor of that very process: a pid alone may be another's by now
    try:
        while True:
            fresh = 0
            for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]:
                if pid not in held and _is_left(pid, held):
                    fresh += _hold(pid, held)
            if not fresh:
                break
        for descriptor in held.values():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        for descriptor in held.values():
            os.close(descriptor)
    return list(held)


def _hold(pid: int, held: dict[int, int]) -> bool:
    """Stop a process, if it still is one of those to kill, and keep hold of it."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if _is_left(pid, held):
            signal.pidfd_send_signal(descriptor, signal.SIGSTOP)
            held[pid] = descriptor
            return True
    except OSError:
        pass
    os.close(descriptor)
    return False


def _is_left(pid: int, held: Mapping[int, int]) -> bool:
    """Whether a live process bears a dead owner's mark, or is a child of one that is held and not a living owner's."""
    if _start_time(pid) is None or pid == os.getpid():
        return False
    mark = _mark(pid)
    return is_dead(mark) if mark is not None else _parent(pid) in held


def _mark(pid: int) -> str | None:
    key = f"{MARKER}=".encode()
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for pair in environment.split(b"\0"):
        if pair.startswith(key):
            return pair[len(key) :].decode("ascii", "replace")
    return None


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None
