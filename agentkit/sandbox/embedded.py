"""The sandbox that the embedded back ends share: a shell session, programs and files in one place, and one end."""

import logging
import posixpath
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Self

import anyio

from agentkit.errors import SandboxDead
from agentkit.protocols.sandbox import ExecResult, OutputCap
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.sandbox.completion import complete
from agentkit.sandbox.execution import execute
from agentkit.sandbox.files import SandboxFiles
from agentkit.sandbox.shell import ShellSession
from agentkit.sandbox.spawner import CLOSE_S, Place, Process, Program, as_argv
from agentkit.sandbox.terminal import PtyTerminal, open_terminal, terminal_program

LOG = logging.getLogger("agentkit.sandbox")


class EmbeddedSandbox:
    """A started sandbox. `keeper` is the process whose end is the end of everything inside."""

    def __init__(
        self,
        name: str,
        spec: SandboxSpec,
        place: Place,
        keeper: Process,
        *,
        isolated: bool,
        cwd: str,
        env: Mapping[str, str],
        session: ShellSession,
        stay: str = "",
        locate: Callable[[str], str],
        after: Callable[[], Awaitable[None]],
    ) -> None:
        self.name = name
        self.spec = spec
        self.isolated = isolated
        self._place = place
        self._keeper = keeper
        self._cwd = cwd
        self._env = dict(env)
        self._locate = locate
        self._after = after
        self._session = session
        self._files = SandboxFiles(
            place, Program(("true",), env, (cwd,)), locate=locate, stay=stay, limit_bytes=spec.read_limit_bytes
        )
        self._terminals: list[PtyTerminal] = []
        self._closing = anyio.Lock()
        self._closed = False
        self._gone = False

    def _check(self) -> None:
        if self._closed:
            raise SandboxDead(f"sandbox {self.name} is closed")
        if self._keeper.poll():
            raise SandboxDead(f"sandbox {self.name} is gone")

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run`."""
        self._check()
        result = await self._session.run(command, timeout_s=timeout_s, cap=cap)
        if result.died or (result.exit_code == 137 and not result.timed_out):
            self._check()  # the whole sandbox, not just its shell
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
        self._check()
        directory = self._cwd if cwd is None else self._locate(cwd)
        program = Program(as_argv(argv), self._env | dict(env or {}), (directory,))
        result = await execute(self._place, program, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output)
        if result.exit_code == 137 and not result.timed_out:
            self._check()
        return result

    async def read(self, path: str, /) -> bytes:
        """As `Files.read`."""
        self._check()
        return await self._files.read(path)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write`."""
        self._check()
        await self._files.write(path, data)

    async def upload(self, source: Path, destination: str, /) -> None:
        """As `Transfer.upload`."""
        self._check()
        await self._files.upload(source, destination)

    async def download(self, source: str, destination: Path, /) -> None:
        """As `Transfer.download`; `destination` must not exist, or be an empty directory or a file to replace."""
        self._check()
        await self._files.download(source, destination)

    async def terminal(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> PtyTerminal:
        """As `Interactive.terminal`; `TERM` is `linux` unless `env` says otherwise. Closed with the sandbox."""
        self._check()
        program = terminal_program(argv, self._env, self._cwd if cwd is None else self._locate(cwd), env)
        made = await open_terminal(self._place, program, rows=rows, columns=columns, check=self._check)
        if self._closed:  # meanwhile
            await made.close()
            self._check()
        self._terminals = [*(one for one in self._terminals if not one.closed), made]
        return made

    async def alive(self) -> bool:
        """As `Lifecycle.alive`."""
        return not self._closed and not self._keeper.poll()

    async def close(self) -> None:
        """As `Lifecycle.close`.

        Cancellation: raised when it is done; takes at most about 5 s, and says in the log what did not end in time.
        """
        self._closed = True
        self._session.closed = True
        await complete(self._close)

    async def _close(self) -> None:
        async with self._closing:
            if self._gone:
                return
            self._gone = True
            await end(self._keeper, self.name)
            for terminal in self._terminals:
                await terminal.close()
            await self._session.close()
            self._keeper.close()
            await self._after()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()


async def end(keeper: Process, name: str) -> None:
    """Kill a sandbox and wait for it, shielded, at most `CLOSE_S` seconds; say so where it did not end."""
    with anyio.move_on_after(CLOSE_S, shield=True) as scope:
        keeper.end()
        await keeper.gone()
    if scope.cancelled_caught:
        LOG.error("sandbox %s: processes did not end within %s s of being killed", name, CLOSE_S)


def absolute(cwd: str, path: str) -> str:
    """`path` as seen from `cwd`; not normalised, since `a/../b` means what the sandbox's symlinks say."""
    return posixpath.join(cwd, path)
