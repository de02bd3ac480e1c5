"""What bubblewrap's sandboxes cannot give on this machine, and what to do about it."""

import os
import re
import subprocess
from pathlib import Path

from agentkit.sandbox.cgroups import CONTROLLERS, Hierarchy, enforced
from agentkit.sandbox.seccomp import unavailable

OLDEST = (0, 7, 0)
"""The first bubblewrap with `--size`, which bounds file systems in memory; older ones make no sandbox of ours."""
_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "15000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)


def counts_processes(release: str | None = None) -> bool:
    """Whether RLIMIT_NPROC counts the processes of one sandbox alone.

    Root gives each a user of its own; for others it needs Linux 5.14, which counts them in each user namespace.
    """
    if os.geteuid() == 0 and release is None:
        return True
    found = re.match(r"(\d+)\.(\d+)", release or os.uname().release)
    return found is not None and (int(found[1]), int(found[2])) >= (5, 14)


def obstacles(sysctls: Path = Path("/proc/sys")) -> tuple[str, ...]:
    """Settings of this machine that keep ordinary users from making sandboxes; none of them binds root."""
    if os.geteuid() == 0 and sysctls == Path("/proc/sys"):
        return ()
    found: list[str] = []
    for name, bad, good in _SWITCHES:
        try:
            value = (sysctls / name).read_text().strip()
        except OSError:
            continue
        if value == bad:
            key = name.replace("/", ".")
            found.append(f"ordinary users may make no user namespaces here ({key} is {bad}): sysctl -w {key}={good}")
    return tuple(found)


def shortcomings(bwrap: str, hierarchies: tuple[Hierarchy, ...]) -> tuple[str, ...]:
    """What is missing with the program `bwrap` and the control groups found: one sentence each, `what: cure`."""
    found = list(obstacles())
    version = _version(bwrap)
    if version is not None and version < OLDEST:
        found.append(
            f"bubblewrap {'.'.join(map(str, version))} is too old to make sandboxes: "
            f"install {'.'.join(map(str, OLDEST))} or newer"
        )
    unfiltered = unavailable()
    if unfiltered is not None:
        found.append(f"{unfiltered}, so programs inside may make user namespaces: run on another machine or kernel")
    kept = enforced(hierarchies) | ({"processes"} if counts_processes() else set[str]())
    found.extend(
        f"limits.{limit} cannot be kept, as no {controller} control group can be made: {_cure()}"
        for limit, controller in CONTROLLERS.items()
        if limit not in kept
    )
    return tuple(found)


def _cure() -> str:
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return "start the container with a writable /sys/fs/cgroup (--privileged, or --cgroupns=private and a mount)"
    if os.geteuid() == 0:
        return "mount /sys/fs/cgroup writable and start from a group whose parent gives the controllers"
    return "start under `systemd-run --user --scope -p Delegate=yes`, or as root"


def _version(bwrap: str) -> tuple[int, ...] | None:
    try:
        done = subprocess.run([bwrap, "--version"], capture_output=True, timeout=5, stdin=subprocess.DEVNULL, env={})
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"(\d+)\.(\d+)\.(\d+)", done.stdout)
    return tuple(int(part) for part in found.groups()) if found else None
