"""Sandboxes by bubblewrap: namespaces of their own, the host's programs read-only, no daemon and no image.

Inside: /usr, the harmless part of /etc, the running Python's installation; a private /tmp, /home and working directory
in memory; its own processes, and no network unless asked for. A `sleep` holds the namespaces, and everything else is
entered into them by the spawner. Who may do what:

- started by root, bwrap makes no user namespace, and programs inside run as an unused uid without any capability: as
  host root they could write /proc/sys however unprivileged their namespace. The holder stays root's, so that
  `kill -9 -1` inside leaves the sandbox alive.
- started by anybody else, it is a user namespace of that user.
- with a root of its own (`overlay`), programs are root inside, in a user namespace where that is nobody outside.

Either way no program can make namespaces or mounts of its own (`seccomp`), and sees no more of /proc than its own
processes and the machine's size (`masks`).
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Self

import anyio
import attrs

from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox import _spawner_mounts, overlay
from agentkit.sandbox.arguments import bwrap_arguments
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
from agentkit.sandbox.overlay import HOME, ROOT_HOME, Layout, Owner, lay_out
from agentkit.sandbox.pump import Pump, pipe_for
from agentkit.sandbox.seccomp import filter_program
from agentkit.sandbox.shell import ShellSession
from agentkit.sandbox.shortcomings import counts_processes, obstacles, shortcomings
from agentkit.sandbox.snapshot import BwrapSnapshot, Layer, hold_all, keep_files, release_all
from agentkit.sandbox.spawner import InnerPlace, Program, Spawner, StartFailed, hold_spawner, request
from agentkit.sandbox.starts import Starts
from agentkit.sandbox.uids import Uids

RANGES = 0x70000000
"""The first of the ids of sandboxes that have many; 32768 times 65536 of them."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def programs_env() -> dict[str, str]:
    """The minimal environment of a command: nothing of the host process is in it."""
    own = f"{sys.base_prefix}/bin:" if not sys.base_prefix.startswith("/usr") else ""
    return {
        "PATH": f"{own}{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        "GIT_PAGER": "cat",
    }


_NUMBERS = count()  # of this process, whichever of its back ends starts a sandbox: names are not to meet


class BwrapSandbox(EmbeddedSandbox):
    """A sandbox whose files can be kept and multiplied."""

    keep: Callable[[], Awaitable[BwrapSnapshot]]
    again: Callable[[BwrapSnapshot], Awaitable["BwrapSandbox"]]

    async def snapshot(self) -> BwrapSnapshot:
        """As `Snapshots.snapshot`: costs a copy of what was written since the start, not of what lies below.

        Files that are written meanwhile may be kept half; sockets and what is in /dev/shm are left out.
        """
        self._check()
        return await self.keep()

    async def fork(self) -> "BwrapSandbox":
        """As `Snapshots.fork`."""
        async with await self.snapshot() as snapshot:
            return await self.again(snapshot)


class BwrapBackend:
    """Isolated sandboxes. `async with` keeps its spawner between sandboxes; without, the last sandbox ends it.

    With `overlay`, the programs of the machine can be written to inside, privately. `memory_bytes` is how much a
    sandbox may write where the spec has no limit: its files are in memory. `max_processes` (where we are root) bounds
    the processes of one sandbox; `max_starts` is how many sandboxes are being started at a time. Snapshots are kept
    below `directory` (the system's for temporary files), until they are closed or `async with` is left.
    """

    isolated = True

    def __init__(
        self,
        *,
        bwrap: str = "bwrap",
        max_starts: int = 16,
        max_processes: int = 1024,
        memory_bytes: int = 4 * 1024**3,
        overlay: bool = False,
        directory: Path | None = None,
    ) -> None:
        self._bwrap = bwrap
        self._overlay = overlay
        self._directory = directory or Path(tempfile.gettempdir())
        self._snapshots: weakref.WeakSet[BwrapSnapshot] = weakref.WeakSet()
        self._max_processes = max_processes
        self._memory = memory_bytes
        self._starts = Starts(max_starts)
        self._uids = Uids()
        self._filter = filter_program()
        self._hierarchies: tuple[Hierarchy, ...] | None = None
        self._kept: list[Spawner] = []

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do here."""
        overlays = overlay.can_overlay(root=os.geteuid() == 0)
        return Capabilities(
            isolated=True,
            rootfs=overlays,
            read_only=True,
            networks=frozenset({"none", "host"}),
            limits=enforced(self._groups()) | {"disk_bytes"} | ({"processes"} if counts_processes() else set()),
            snapshots=overlays,
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
        if len(self._kept) == 1:
            for snapshot in list(self._snapshots):
                await snapshot.close()
        await self._kept.pop().release()

    def available(self) -> str | None:
        """Why no sandbox can be started here, or None. Starts one, so it blocks for some 20 ms."""
        if shutil.which(self._bwrap) is None:
            return f"{self._bwrap!r} is not installed (Debian, Fedora, Arch: the package bubblewrap)"
        spec = SandboxSpec()
        layout = self._lay_out(spec, 65533, ())
        words = bwrap_arguments(spec, layout, rooted=self._rooted(spec), users_fd=0, filter_fd=None)
        script = [sys.executable, "-I", "-S", _spawner_mounts.__file__, json.dumps(layout.plan)]
        try:
            command = [*script, self._bwrap, *words, "true"]
            env = {"PATH": os.defpath}
            done = subprocess.run(command, capture_output=True, timeout=10, stdin=subprocess.DEVNULL, env=env)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{self._bwrap!r} does not run: {error}"
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            return "\n".join((f"{self._bwrap!r} cannot make a sandbox: {said}", *obstacles()))
        return None

    async def start(self, spec: SandboxSpec, /) -> BwrapSandbox:
        """A started sandbox; its shell answers.

        Raises:
            ConfigError: the spec asks for what these sandboxes cannot give here.
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        capabilities = self.capabilities
        capabilities.check(spec, "bwrap")
        if self._overlay and not capabilities.rootfs:
            raise ConfigError("overlay=True needs Linux 6.6, or 5.19 as root, with overlay file systems")
        snapshot = self._own(spec)
        if snapshot is not None and spec.rootfs is None and snapshot.rootfs is not None:
            spec = attrs.evolve(spec, rootfs=snapshot.rootfs)
        async with self._starts.here():
            try:
                name = f"{owner()}-{next(_NUMBERS)}"
                spawner = hold_spawner()
                try:
                    return await self._start(name, spec, spawner)
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await spawner.release()
                    raise
            except OSError as error:  # no descriptors left, say
                raise SandboxError(f"a sandbox could not be started: {error}", retryable=True) from error

    async def _start(self, name: str, spec: SandboxSpec, spawner: Spawner) -> BwrapSandbox:
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        uid = self._uids.take() if os.geteuid() == 0 else os.getuid()
        layers = snapshot.layers if (snapshot := self._own(spec)) is not None else ()
        hold_all(layers)
        try:
            return await self._start_as(uid, name, spec, spawner, layers)
        except BaseException:
            self._uids.give_back(uid)
            await release_all(layers)
            raise

    def _own(self, spec: SandboxSpec) -> BwrapSnapshot | None:
        """The snapshot to start from, checked to fit."""
        snapshot = spec.snapshot
        if snapshot is None:
            return None
        if not isinstance(snapshot, BwrapSnapshot):
            raise ConfigError(f"snapshot is not one of a bwrap sandbox: {snapshot.name!r}")
        if snapshot.closed:
            raise ConfigError(f"snapshot {snapshot.name!r} is closed")
        wanted = overlay.kind_of(spec, self._overlay)
        if snapshot.kind != wanted and not (spec.rootfs is None and snapshot.rootfs is not None):
            raise ConfigError(
                f"snapshot {snapshot.name!r} is of the files {snapshot.kind!r}, the spec's are {wanted!r}"
            )
        return snapshot

    def _rooted(self, spec: SandboxSpec) -> bool:
        return self._overlay or spec.rootfs is not None

    def _lay_out(self, spec: SandboxSpec, uid: int, layers: Sequence[Layer]) -> Layout:
        ordinary = os.geteuid() != 0
        first, number = uid, 1
        if self._rooted(spec):
            number = overlay.IDS
            first = 0 if ordinary else RANGES + uid % 0x8000 * number
        size = overlay.size_of(spec, self._memory)
        return lay_out(spec, overlay=self._overlay, owner=Owner(first, number, ordinary), size=size, layers=layers)

    async def _start_as(
        self, uid: int, name: str, spec: SandboxSpec, spawner: Spawner, layers: Sequence[Layer]
    ) -> BwrapSandbox:
        rooted = self._rooted(spec)
        layout = self._lay_out(spec, uid, layers)
        root = os.geteuid() == 0
        confine: dict[str, object] = {"groups": groups_for(name, spec.limits, self._groups())}
        far: dict[int, int] = {}
        users = f"root:x:0:0:root:/root:/bin/sh\nagent:x:{uid}:{uid}:agent:{HOME}:/bin/bash\n"
        if self._filter is not None:
            confine["seccomp"] = self._filter.hex()
        life = "infinity" if spec.lifetime_s is None else f"{spec.lifetime_s:.3f}"
        reap = "trap '' CHLD; " if rooted else ""  # where it is the init, and so the parent of orphans
        holder = ("sh", "-c", f"{reap}echo ready; exec sleep {life} >/dev/null 2>&1")
        words = bwrap_arguments(
            spec, layout, rooted=rooted, users_fd=10, filter_fd=None if self._filter is None else 11
        )
        program = Program(
            (self._bwrap, "--args", "12", "--", *holder),
            {"PATH": os.defpath, MARKER: name},
            options={"confine": confine, "mounts": layout.plan, "bare": rooted},
        )
        output = pipe_for(far, 1)
        try:
            far[2] = far[1]
            far[10] = _memory_file(users.encode())
            if self._filter is not None:
                far[11] = _memory_file(self._filter)
            far[12] = _memory_file("\0".join(words[:-1]).encode())  # the command line is read inside, in /proc/1
            keeper = await request(spawner.main, "hold", program, far)
        except BaseException as error:
            os.close(output)
            if isinstance(error, StartFailed) and error.stage == "mounts":
                raise SandboxError(f"the files of a sandbox could not be laid out: {error}") from error
            if isinstance(error, StartFailed):
                raise SandboxError(f"{self._bwrap!r} could not be started: {error}") from error
            raise
        finally:
            for fd in set(far.values()):
                os.close(fd)

        async def after() -> None:
            self._uids.give_back(uid)
            await release_all(layers)
            await spawner.release()

        async def keep() -> BwrapSnapshot:
            directory = self._directory / f"agentkit-{name}-s{next(_NUMBERS)}"
            insides = tuple(source.inside for source in layout.sources)
            top = Layer(directory, insides, layout.plan["owner"], overlay.IDS if rooted else 1)
            top.hold()
            await keep_files(spawner.main, keeper.pid, layout.kept, top)
            kind = overlay.kind_of(spec, self._overlay)
            made = BwrapSnapshot(directory.name, kind, spec.rootfs, (top, *layers))
            self._snapshots.add(made)
            await top.release()
            return made

        session: ShellSession | None = None
        said = bytearray()
        try:
            pump = Pump(keeper, output=output)
        except BaseException:
            os.close(output)
            await end(keeper, name)
            keeper.close()
            raise
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
                options |= {"uid": 0 if rooted else uid, "owner": layout.plan["owner"], "max_processes": processes}
            elif counts_processes():  # in the namespace, where bwrap's own count too
                options["max_processes"] = processes + OWN_PROCESSES
            if rooted:
                options["capabilities"] = overlay.CAPABILITIES
            place = InnerPlace(spawner, keeper.pid, options)
            env = self._env(spec)
            wanted = {"make": [spec.cwd, ROOT_HOME] if rooted else [spec.cwd]}
            session = ShellSession(InnerPlace(spawner, keeper.pid, options | wanted), spec.cwd, env)
            await session.start()
            session.place = place
            sandbox = BwrapSandbox(
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
            sandbox.keep = keep
            sandbox.again = lambda snapshot: self.start(attrs.evolve(spec, snapshot=snapshot))
            return sandbox
        except BaseException:
            await end(keeper, name)
            if session is not None:
                await session.close()
            pump.close()
            raise

    def _env(self, spec: SandboxSpec) -> Mapping[str, str]:
        own = {"HOME": ROOT_HOME, "USER": "root"} if self._rooted(spec) else {"HOME": HOME, "USER": "agent"}
        programs = programs_env()
        if spec.rootfs is not None:
            programs["PATH"] = SYSTEM_PATH
        return programs | own | dict(spec.env)


def _memory_file(data: bytes) -> int:
    fd = os.memfd_create("agentkit", os.MFD_CLOEXEC)
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
