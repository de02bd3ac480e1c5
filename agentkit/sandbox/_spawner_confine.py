"""What a forked child gives up before it becomes a program of a sandbox; part of the spawner, standard library only.

A sandbox's holder is started with `confine`: its system call filter and its control groups. The spawner keeps that
beside the holder, and whatever is entered later gets the same; nobody who asks for a program can leave it out.
"""

import contextlib
import ctypes
import errno
import os
import resource
from collections.abc import Mapping, Sequence
from typing import Any

PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 22, 24, 38
SECCOMP_MODE_FILTER = 2
LIBC = ctypes.CDLL(None, use_errno=True)

Groups = Sequence[Mapping[str, Any]]
"""Control groups: `path` to make, and `set`, the (file, value) pairs to write in that order. A file whose name begins
with `?` may be missing."""


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def forbid_core_dumps() -> None:
    """No file and no handler: where core_pattern is a pipe, the host's runs as root with a limit of 0 too, not of 1."""
    limit = min(1, resource.getrlimit(resource.RLIMIT_CORE)[1])
    limit = 1 if limit == resource.RLIM_INFINITY else limit
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))


def drop_privileges(uid: int | None, max_processes: int | None, program: bytes | None, capabilities: int = 0) -> None:
    """No capability survives the exec, none can come back, and refused system calls are so from here on.

    But for `capabilities`, a bit for each, which a sandbox whose users have a namespace of their own keeps in that.
    """
    for capability in range(64):
        if capabilities >> capability & 1:
            continue
        if LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0 and ctypes.get_errno() == errno.EINVAL:
            break
    if max_processes is not None:
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        limit = max_processes if hard == resource.RLIM_INFINITY else min(max_processes, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    low, high = capabilities & 0xFFFFFFFF, capabilities >> 32
    check(LIBC.capset(header, (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)), "capset")
    check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if program is not None:
        filter_calls(program)


def filter_calls(program: bytes) -> None:
    """Install an array of `struct sock_filter`."""

    class Filter(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    words = Filter(len(program) // 8, program)
    check(LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(words), 0, 0), "seccomp")


def make_groups(groups: Groups) -> None:
    """Make the groups of a sandbox, or none of them."""
    made: list[Mapping[str, Any]] = []
    try:
        for group in groups:
            os.mkdir(group["path"], 0o755)
            made.append(group)
            for name, value in group["set"]:
                path = f"{group['path']}/{name.removeprefix('?')}"
                if not name.startswith("?") or os.path.exists(path):
                    with open(path, "w") as file:
                        file.write(value)
    except OSError:
        remove_groups(made)
        raise


def join_groups(groups: Groups) -> None:
    """Move this process into the groups; what it starts is born in them."""
    for group in groups:
        with open(f"{group['path']}/cgroup.procs", "w") as file:
            file.write("0")


def remove_groups(groups: Groups) -> list[Mapping[str, Any]]:
    """Remove the groups; those that still hold processes are returned."""
    left: list[Mapping[str, Any]] = []
    for group in groups:
        try:
            os.rmdir(group["path"])
        except FileNotFoundError:
            pass
        except OSError:
            left.append(group)
    return left


def offer_to_oom() -> None:
    """Let the kernel, short of memory, kill this process before the host's, and before what holds its sandbox."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
