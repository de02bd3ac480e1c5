"""Sandboxes without isolation, for machines without bubblewrap: a directory, and a subreaper that ends it all.

Commands run as the caller's user and see the caller's files and network. What is kept is the tidiness: every process,
however it detached itself, ends with the sandbox, and the directory goes.
"""

import os
import socket
import tempfile
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Self

import anyio
from anyio import to_thread

from agentkit.errors import SandboxError
from agentkit.protocols.sandbox_spec import Capabilities, SandboxSpec
from agentkit.sandbox.bwrap import programs_env
from agentkit.sandbox.embedded import LOG, EmbeddedSandbox, absolute, end
from agentkit.sandbox.leaks import MARKER, PREFIX, owner, reap, remove_tree
from agentkit.sandbox.shell import ShellSession
from agentkit.sandbox.spawner import HostPlace, Process, Spawner, hold_spawner, request
from agentkit.sandbox.starts import Starts


class HostBackend:
    """Sandboxes that isolate nothing. Never chosen silently: it logs a warning at its first start.

    The working directory of the spec is a directory below `directory` (the system's for temporary files); the spec's
    `network` cannot be kept from a command, and `read_only` becomes symlinks.
    """

    isolated = False

    def __init__(self, *, directory: Path | None = None, max_starts: int = 16) -> None:
        self._directory = directory or Path(tempfile.gettempdir())
        self._starts = Starts(max_starts)
        self._numbers = count()
        self._kept: list[Spawner] = []
        self._announced = False

    @property
    def capabilities(self) -> Capabilities:
        """What these sandboxes can do here: next to nothing. `networks` lists `none` since that is the default."""
        return Capabilities(isolated=False, read_only=True, networks=frozenset({"none", "host"}), terminal=True)

    async def __aenter__(self) -> Self:
        self._kept.append(hold_spawner())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._kept.pop().release()

    def available(self) -> str | None:
        """None: it runs wherever we do."""
        return None

    async def start(self, spec: SandboxSpec, /) -> EmbeddedSandbox:
        """A started sandbox; its shell answers. The first one also removes what killed processes of ours left behind.

        Raises:
            SandboxError: it could not be started.
        Cancellation: nothing is left behind.
        """
        self.capabilities.check(spec, "host")
        if not spec.cwd.startswith("/") or spec.cwd == "/":
            raise SandboxError(f"cwd must be an absolute path below /, found {spec.cwd!r}")
        if not self._announced:
            self._announced = True
            LOG.warning("host sandboxes: NO ISOLATION, commands run as this user with all its files and its network")
            await to_thread.run_sync(reap, self._directory)
        name = f"{owner()}-{next(self._numbers)}-{os.urandom(3).hex()}"
        root = self._directory / f"{PREFIX}{name}"  # named before it exists: the reaper knows it from the first moment
        spawner = hold_spawner()
        keeper: Process | None = None
        main: socket.socket | None = None

        async def after() -> None:
            if main is not None:
                main.close()
            await to_thread.run_sync(_remove, root)
            await spawner.release()

        try:
            async with self._starts.here():
                work = _make(root, spec)
                main, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                main.setblocking(False)
                with theirs:
                    keeper = await request(spawner.main, "nest", None, {0: theirs.fileno()})
                place = HostPlace(main)
                env = self._env(name, root, spec)
                session = ShellSession(place, str(work), env)
                await session.start()
                return EmbeddedSandbox(
                    name,
                    spec,
                    place,
                    keeper,
                    isolated=False,
                    cwd=str(work),
                    env=env,
                    session=session,
                    stay=str(root),
                    locate=lambda path: _locate(spec.cwd, str(work), path),
                    after=after,
                )
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                if keeper is not None:
                    await end(keeper, name)
                    keeper.close()
                await after()
            if isinstance(error, OSError):
                raise SandboxError(f"no directory for a sandbox: {error}") from error
            raise

    def _env(self, name: str, root: Path, spec: SandboxSpec) -> Mapping[str, str]:
        own = {"HOME": str(root / "home"), "TMPDIR": str(root / "tmp"), MARKER: name}
        return programs_env() | own | dict(spec.env)


def _make(root: Path, spec: SandboxSpec) -> Path:
    root.mkdir(mode=0o700)
    for name in ("home", "tmp"):
        (root / name).mkdir()
    work = root / spec.cwd.strip("/")
    work.mkdir(parents=True, exist_ok=True)
    for outside, inside in spec.read_only:
        link = Path(_locate(spec.cwd, str(work), inside))
        if not str(link).startswith(f"{root}/"):
            raise SandboxError(f"read_only path {inside!r} is not below the working directory {spec.cwd!r}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside)
    return work


def _remove(root: Path) -> None:
    if root.exists():
        remove_tree(root)
    if root.exists():
        LOG.error("directory %s could not be removed", root)


def _locate(cwd: str, work: str, path: str) -> str:
    if path == cwd or path.startswith(f"{cwd.rstrip('/')}/"):
        return work + path[len(cwd.rstrip("/")) :]
    return absolute(work, path)
