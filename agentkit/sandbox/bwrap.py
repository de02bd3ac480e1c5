"""Sandboxes by bubblewrap: namespaces of their own, the host's programs read-only, no daemon and no image.

Inside: /usr, the harmless part of /etc, the running Python's installation; a private /tmp, /home and working directory
in memory; its own processes, and no network unless asked for. A `sleep` holds the namespaces, and everything else is
entered into them by the spawner. Who may do what:

- started by root, bwrap makes no user namespace, and programs inside run as an unused uid without any capability: as
  host root they could write /proc/sys however unprivileged their namespace. The holder stays root's, so that
  `kill -9 -1` inside leaves the sandbox alive.
- started by anybody else, it is a user namespace of that user.

Either way no program can make namespaces or mounts of its own (`seccomp`), and sees no more of /proc than its own
processes and the machine's size (`masks`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

import anyio

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.cgroups import (
    OWN_PROCESSES,
    Hierarchy,
    enforced,
    find_hierarchies,
    groups_for,
    reap_cgroups,
)
from agentkit.sandbox.embedded import EmbeddedSandbox, absolute, end
from agentkit.sandbox.leaks import MARKER, owner
from agentkit.sandbox.masks import proc_arguments
from agentkit.sandbox.pump import Pump, pipe_for
from agentkit.sandbox.seccomp import filter_program
from agentkit.sandbox.shell import ShellSession
from agentkit.sandbox.shortcomings import counts_processes, obstacles, shortcomings
from agentkit.sandbox.spawner import InnerPlace, Program, Spawner, StartFailed, hold_spawner, request
from agentkit.sandbox.starts import Starts
from agentkit.sandbox.uids import Uids

HOME = "/home/agent"
ETC = (
    *("alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gitconfig"),
    *("host.conf", "hosts", "inputrc", "java-17-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime"),
    *("login.defs", "magic", "mime.types", "networks", "nsswitch.conf", "os-release", "perl", "pki", "profile"),
    *("protocols", "python3", "python3.11", "rpc", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo"),
    *("timezone", "vim", "xdg"),
)
PRIVATE = ("/tmp", HOME)  # noqa: S108  # the sandbox's own


def programs_env() -> dict[str, str]:
    """The minimal environment of a command: nothing of the host process is in it."""
    own = f"{sys.base_prefix}/bin:" if not sys.base_prefix.startswith("/usr") else ""
    return {
        "PATH": f"{own}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }


class BwrapBackend:
    """Isolated sandboxes. `async with` keeps its spawner between sandboxes; without, the last sandbox ends it.

    `memory_bytes` bounds each of the in-memory file systems, `max_processes` (where we are root) the processes of one
    sandbox; `max_starts` is how many sandboxes are being started at a time.
    """

    isolated = True

    def __init__(
        self,
        *,
        bwrap: str = "bwrap",
        max_starts: int = 16,
        max_processes: int = 1024,
        memory_bytes: int = 4 * 1024**3,
    ) -> None:
        self._bwrap = bwrap
        self._max_processes = max_processes
        self._memory = memory_bytes
        self._starts = Starts(max_starts)
        self._numbers = count()
        self._uids = Uids()
        self._filter = filter_program()
        self._hierarchies: tuple[Hierarchy, ...] | None = None
        self._kept: list[Spawner] = []

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do here."""
        return Capabilities(
            isolated=True,
            read_only=True,
            networks=frozenset({"none", "host"}),
            limits=enforced(self._groups()) | ({"processes"} if counts_processes() else set()),
            terminal=True,
            lifetime=True,
        )

    def _groups(self) -> tuple[Hierarchy, ...]:
        if self._hierarchies is None:
            self._hierarchies = find_hierarchies()
            reap_cgroups(self._hierarchies)
        return self._hierarchies

    def shortcomings(self) -> tuple[str, ...]:
        """What sandboxes cannot be given on this machine, each with its cure. Blocks for some milliseconds."""
        return shortcomings(self._bwrap, self._groups())

    async def __aenter__(self) -> Self:
        self._kept.append(hold_spawner())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._kept.pop().release()

    def available(self) -> str | None:
        """Why no sandbox can be started here, or None. Starts one, so it blocks for some 20 ms."""
        if shutil.which(self._bwrap) is None:
            return f"{self._bwrap!r} is not installed (Debian, Fedora, Arch: the package bubblewrap)"
        command = [self._bwrap, *self._arguments(SandboxSpec(), 65534, None), "true"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=10, stdin=subprocess.DEVNULL, env={})
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self._bwrap!r} does not run: {error}"
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            return "\n".join((f"{self._bwrap!r} cannot make a sandbox: {said}", *obstacles()))
        return None

    async def start(self, spec: SandboxSpec, /) -> EmbeddedSandbox:
        """A started sandbox; its shell answers.

        Raises:
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        self.capabilities.check(spec, "bwrap")
        async with self._starts.here():
            name = f"{owner()}-{next(self._numbers)}"
            spawner = hold_spawner()
            try:
                return await self._start(name, spec, spawner)
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await spawner.release()
                raise

    async def _start(self, name: str, spec: SandboxSpec, spawner: Spawner) -> EmbeddedSandbox:
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        uid = self._uids.take() if os.geteuid() == 0 else os.getuid()
        try:
            return await self._start_as(uid, name, spec, spawner)
        except BaseException:
            self._uids.give_back(uid)
            raise

    async def _start_as(self, uid: int, name: str, spec: SandboxSpec, spawner: Spawner) -> EmbeddedSandbox:
        root = os.geteuid() == 0
        confine: dict[str, object] = {"groups": groups_for(name, spec.limits, self._groups())}
        far: dict[int, int] = {}
        output = pipe_for(far, 1)
        far[2] = far[1]
        far[10] = _memory_file(f"root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n".encode())
        if self._filter is not None:
            far[11] = _memory_file(self._filter)
            confine["seccomp"] = self._filter.hex()
        life = "infinity" if spec.lifetime_s is None else f"{spec.lifetime_s:.3f}"
        holder = ("sh", "-c", f"echo ready; exec sleep {life} >/dev/null 2>&1")
        words = self._arguments(spec, uid, 10)
        words[-1:] = ["--seccomp", "11", "--"] if 11 in far else ["--"]
        program = Program(
            (self._bwrap, *words, *holder), {"PATH": os.defpath, MARKER: name}, options={"confine": confine}
        )
        try:
            keeper = await request(spawner.main, "hold", program, far)
        except BaseException as error:
            os.close(output)
            if isinstance(error, StartFailed):
                raise SandboxError(f"{self._bwrap!r} could not be started: {error}") from error
            raise
        finally:
            for fd in set(far.values()):
                os.close(fd)

        async def after() -> None:
            self._uids.give_back(uid)
            await spawner.release()

        said = bytearray()
        pump = Pump(keeper, output=output)
        try:
            while b"ready\n" not in said and not keeper.ended:
                await pump.step(said.extend, None)
            if b"ready\n" not in said:
                pump.drain(said.extend)
                raise SandboxError(f"bwrap could not make a sandbox: {said.decode('utf-8', 'replace').strip()!r}")
            pump.release()
            processes = spec.limits.processes or self._max_processes
            options: dict[str, object] = {"drop": True}
            if root:
                options |= {"uid": uid, "max_processes": processes}
            elif counts_processes():  # in the namespace, where bwrap's own count too
                options["max_processes"] = processes + OWN_PROCESSES
            place = InnerPlace(spawner, keeper.pid, options)
            env = self._env(spec)
            owned = {"chown": [spec.cwd, *PRIVATE]} if root else {}
            session = ShellSession(InnerPlace(spawner, keeper.pid, options | owned), spec.cwd, env)
            await session.start()
            session.place = place
            return EmbeddedSandbox(
                name,
                spec,
                place,
                keeper,
                isolated=True,
                cwd=spec.cwd,
                env=env,
                session=session,
                locate=lambda path: absolute(spec.cwd, path),
                after=after,
            )
        except BaseException:
            await end(keeper, name)
            pump.close()
            raise

    def _env(self, spec: SandboxSpec) -> Mapping[str, str]:
        return programs_env() | {"HOME": HOME, "USER": "agent"} | dict(spec.env)

    def _arguments(self, spec: SandboxSpec, uid: int, users: int | None) -> list[str]:
        root = os.geteuid() == 0
        words = ["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
        unshare = "ipc pid uts cgroup-try" if root else "user ipc pid uts cgroup-try"
        words += [f"--unshare-{kind}" for kind in unshare.split()]
        words += [] if spec.network == "host" else ["--unshare-net"]
        words += ["--setenv", "PATH", "/usr/bin:/bin", "--hostname", "sandbox"]
        words += ["--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
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
        for name in (*ETC, "resolv.conf") if spec.network == "host" else ETC:
            words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        words += ["--dev", "/dev", *proc_arguments()]
        for private in dict.fromkeys((*PRIVATE, spec.cwd)):
            words += ["--perms", "1777", "--size", str(self._memory), "--tmpfs", private]
        if users is not None:
            words += ["--perms", "0644", "--ro-bind-data", str(users), "/etc/passwd"]
        if not sys.base_prefix.startswith("/usr"):
            words += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        for outside, inside in spec.read_only:
            words += ["--ro-bind", outside, inside]
        return [*words, "--chdir", spec.cwd, "--"]


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("agentkit", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
