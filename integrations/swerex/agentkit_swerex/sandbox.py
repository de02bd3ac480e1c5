"""A sandbox behind a SWE-ReX server, like any other of ours."""

import json
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import anyio

from agentkit.errors import SandboxDead, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox import _spawner_main
from agentkit.sandbox.execution import execute
from agentkit.sandbox.files import SandboxFiles
from agentkit.sandbox.shell import ShellSession
from agentkit.sandbox.spawner import Program, StartFailed, as_argv
from agentkit_swerex.bridge import Bridge
from agentkit_swerex.launch import Launched
from agentkit_swerex.rex import Rex
from agentkit_swerex.through import through

ORPHAN_S = 1800.0
BOOT_S = 60.0
LEAVE_S = 5.0
_BOOT = """
python=$(readlink "/proc/$PPID/exe" 2>/dev/null)
[ -x "$python" ] || python=$(command -v python3) || { echo 'no python can be found in it'; exit 127; }
exec "$python" -I -S -B "$1/_guest.py" "$2"
"""


class SwerexSandbox:
    """A started sandbox. Commands are killed, timed and cut as everywhere; the server only carries what is said."""

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        rex: Rex,
        bridge: Bridge,
        launched: Launched,
        *,
        isolated: bool,
        is_ours: bool,
        root: str,
        env: Mapping[str, str],
        after: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self.spec = spec
        self.isolated = isolated
        self._rex = rex
        self._bridge = bridge
        self._launched = launched
        self._is_ours = is_ours
        self._root = root
        self._cwd = self._locate(spec.cwd)
        self._env = {**env, **spec.env}
        self._after = after
        self._session = ShellSession(bridge, self._cwd, self._env)
        self._files = SandboxFiles(
            bridge,
            Program(("true",), self._env, (self._cwd,)),
            locate=self._locate,
            stay=root,
            limit_bytes=spec.read_limit_bytes,
        )
        self._closing = anyio.Lock()
        self._closed = False

    def _locate(self, path: str) -> str:
        if self._root and (path == self.spec.cwd or path.startswith(f"{self.spec.cwd.rstrip('/')}/")):
            return self._root + posixpath.join("/", path.lstrip("/"))
        return posixpath.join(self._root + self.spec.cwd, path)

    async def start(self) -> None:
        """Start the shell; commands may be run before, too.

        Raises:
            SandboxError: the sandbox has no bash.
        """
        try:
            async with self._using(None):
                await self._session.start()
        except SandboxDead as error:
            if isinstance(error.__cause__, StartFailed):
                raise SandboxError(f"no shell can be started, is there a bash in it: {error.__cause__}") from error
            raise

    @asynccontextmanager
    async def _using(self, timeout_s: float | None) -> AsyncIterator[None]:
        if self._closed:
            raise SandboxDead(f"sandbox {self.name} is closed")
        await self._bridge.refresh()
        deadline = anyio.current_effective_deadline()
        if timeout_s is not None:
            deadline = min(deadline, anyio.current_time() + timeout_s)
        with self._bridge.active(deadline):
            try:
                yield
            except SandboxDead:
                self._bridge.check()  # says why
                raise

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run`."""
        async with self._using(timeout_s):
            result = await self._session.run(command, timeout_s=timeout_s, cap=cap)
            if result.died:
                self._bridge.check()  # the whole sandbox, not just its shell
            return result

    async def exec(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        cap: OutputCap = OutputCap(),  # noqa: B008  # frozen
        on_output: Callable[[bytes], None] | None = None,
    ) -> ExecResult:
        """As `Shell.exec`; `env` is added to that of the spec, a relative `cwd` starts at the working directory."""
        words = as_argv(argv)
        async with self._using(timeout_s):
            directory = self._cwd if cwd is None else self._locate(cwd)
            program = Program(words, self._env | dict(env or {}), (directory,))
            return await execute(self._bridge, program, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output)

    async def read(self, path: str, /) -> bytes:
        """As `Files.read`."""
        async with self._using(None):
            return await self._files.read(path)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write`."""
        async with self._using(None):
            await self._files.write(path, data)

    async def upload(self, source: Path, destination: str, /) -> None:
        """As `Transfer.upload`."""
        async with self._using(None):
            await self._files.upload(source, destination)

    async def download(self, source: str, destination: Path, /) -> None:
        """As `Transfer.download`; `destination` must not exist, or be an empty directory or a file to replace."""
        async with self._using(None):
            await self._files.download(source, destination)

    async def alive(self) -> bool:
        """As `Lifecycle.alive`. Cancellation: nothing happens."""
        if self._closed:
            return False
        try:
            await self._bridge.refresh()
        except SandboxDead:
            return False
        return True

    async def close(self) -> None:
        """As `Lifecycle.close`. The server is never asked to close: it might be busy. Cancellation: shielded."""
        await through(self._end())

    async def _end(self) -> None:
        async with self._closing:
            if self._closed:
                return
            self._closed = True
            self._session.closed = True
            if not self._is_ours:  # the server stays: its guest must go
                with anyio.move_on_after(LEAVE_S):
                    await self._bridge.leave()
            await self._bridge.close()
            await self._session.close()
            await self._rex.close()
            await self._after()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


async def move_in(
    rex: Rex, name: str, spec: SandboxSpec, *, root: str, owns: bool
) -> tuple[int, str, Mapping[str, str]]:
    """Bring the guest into the sandbox and start it: its pid, its directory, and the PATH and HOME it found.

    Raises:
        SandboxError: it could not be started.
    Cancellation: it may have been started; it ends by itself.
    """
    directory = f"{root}/guest" if root else f"/tmp/agentkit-{name}"  # noqa: S108  # the sandbox's, and 0700
    here = Path(__file__).parent
    beside = Path(_spawner_main.__file__).parent
    for path in (*sorted(here.glob("_guest*.py")), *sorted(beside.glob("_spawner_*.py"))):
        await rex.write_file(f"{directory}/{path.name}", await anyio.Path(path).read_text(), timeout_s=BOOT_S)
    options = {"directory": directory, "cwd": f"{root}{spec.cwd}", "own": owns}
    options |= {"lifetime_s": spec.lifetime_s, "orphan_s": ORPHAN_S}
    argv = ("sh", "-c", _BOOT, "sh", directory, json.dumps(options))
    done = await rex.execute(argv, timeout_s=BOOT_S)
    try:
        hello = json.loads(done.output)
        found = {str(key): str(value) for key, value in hello["env"].items()}
        return int(hello["pid"]), directory, found
    except (ValueError, KeyError, TypeError, AttributeError):
        said = rex.plain(done.output) or f"exit code {done.exit_code}"
        raise SandboxError(f"the sandbox cannot be used, it needs sh, bash and Python 3.10 or later: {said}") from None
