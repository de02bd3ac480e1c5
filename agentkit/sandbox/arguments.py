"""The words of the bwrap that makes one sandbox."""

import os
import sys
from pathlib import Path

from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox._spawner_mounts import SCRATCH
from agentkit.sandbox.masks import proc_arguments
from agentkit.sandbox.overlay import ETC_DIRECTORIES, ETC_FILES, HOME, SHARED_MEMORY, SYSTEM, Layout


def bwrap_arguments(
    spec: SandboxSpec, layout: Layout, *, rooted: bool, users_fd: int, filter_fd: int | None
) -> list[str]:
    """The options for a sandbox with these files, without the program that holds it.

    `rooted` sandboxes have a root of their own; the others get the machine's programs read-only and, from `users_fd`,
    the list of users.
    """
    words = ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += [f"--unshare-{kind}" for kind in ("ipc", "pid", "uts", "cgroup-try")]
    words += [] if spec.network == "host" else ["--unshare-net"]
    words += ["--setenv", "PATH", "/usr/bin:/bin", "--hostname", "sandbox"]
    if not rooted:
        if os.geteuid() != 0:
            words += ["--unshare-user", "--uid", str(os.getuid()), "--gid", str(os.getgid())]
        words += _machine(spec)
    else:  # its init holds the namespaces itself: root inside could kill any other process that did
        words += ["--as-pid-1", *layout.words]
    words += ["--dev", "/dev", *proc_arguments()]
    words += ["--bind", f"{SCRATCH}/u{len(layout.sources)}", SHARED_MEMORY]
    if not rooted:
        words += [*layout.words, "--perms", "0644", "--ro-bind-data", str(users_fd), "/etc/passwd"]
        if not sys.base_prefix.startswith("/usr"):
            words += ["--ro-bind", sys.base_prefix, sys.base_prefix]
    for number, (outside, inside) in enumerate(spec.read_only):  # a root of its own is made by nobody: paths are closed
        words += ["--ro-bind", f"{SCRATCH}/r{number}" if rooted else outside, inside]
    words += ["--remount-ro", "/dev"]  # memory without a limit, as is the root that bwrap makes
    if not rooted:
        words += ["--remount-ro", "/"]
    return [*words, *([] if filter_fd is None else ["--seccomp", str(filter_fd)]), "--chdir", "/", "--"]


def _machine(spec: SandboxSpec) -> list[str]:
    """The machine's programs, read-only, and the directories above what comes on top."""
    words = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            words += ["--symlink", os.readlink(path), str(path)]
        elif path.exists():
            words += ["--ro-bind", str(path), str(path)]
    targets = [sys.base_prefix, spec.cwd, HOME, "/etc/ssl/certs", *(inside for _, inside in spec.read_only)]
    above = {str(parent) for target in targets for parent in Path(target).parents}
    for directory in sorted(above - {"/"}):  # bwrap would make them 0700, and root's
        if not f"{directory}/".startswith(("/usr/", "/proc/", "/dev/", f"{spec.cwd}/")):
            words += ["--perms", "0755", "--dir", directory]
    names = (*ETC_DIRECTORIES, *ETC_FILES, *(("resolv.conf",) if spec.network == "host" else ()))
    for name in names:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return words
