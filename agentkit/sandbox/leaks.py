"""Names that say who made a thing, and the removal of what a killed process left behind.

An owner is boot id + pid + start time of the process: unlike a pid alone it is never used twice. Directories and
processes carry it, from before they exist, so that a later start can tell the living's from the dead's.
"""

import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable
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
    killed: list[int] = []
    key = f"{MARKER}=".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        for pair in environment.split(b"\0"):
            if pair.startswith(key) and is_dead(pair[len(key) :].decode("ascii", "replace")):
                try:
                    os.kill(int(entry), signal.SIGKILL)
                    killed.append(int(entry))
                except OSError:
                    pass
    return killed
