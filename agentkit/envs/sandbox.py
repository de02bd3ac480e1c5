"""An env that is a sandbox: what runs commands and keeps files for the tools of one rollout."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from agentkit.errors import SandboxDead
from agentkit.protocols.messages import Message
from agentkit.protocols.sandbox import ExecResult, OutputCap, Sandbox, SandboxBackend
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.protocols.task import Task
from agentkit.sandbox import default_backend

Setup: TypeAlias = Callable[[Sandbox, Task], Awaitable[Sequence[Message] | None]]


class SandboxEnv:
    """One sandbox for one rollout. Satisfies Env, and Shell and Files for the tools that need them.

    `setup` prepares the sandbox for the task and may return the messages that open the conversation. Without a
    `backend` the isolated default is used; share one between rollouts to bound how many sandboxes start at a time.
    """

    def __init__(
        self,
        backend: SandboxBackend | None = None,
        spec: SandboxSpec = SandboxSpec(),  # noqa: B008  # frozen
        *,
        setup: Setup | None = None,
    ) -> None:
        self._backend = backend
        self._spec = spec
        self._setup = setup
        self._sandbox: Sandbox | None = None

    @property
    def sandbox(self) -> Sandbox:
        """The started sandbox.

        Raises:
            SandboxDead: it was not started, or is closed.
        """
        if self._sandbox is None:
            raise SandboxDead("the env has no sandbox: not started, or closed")
        return self._sandbox

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Start the sandbox and prepare it.

        Raises:
            ConfigError: no backend was given and no isolated one can run here.
            SandboxError: it could not be started.
        Cancellation: `close` removes what there is.
        """
        backend = self._backend or default_backend()
        self._sandbox = await backend.start(self._spec)
        return None if self._setup is None else await self._setup(self._sandbox, task)

    async def close(self) -> None:
        """Close the sandbox, if there is one. Cancellation: shielded by the sandbox, about 5 s at most."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            await sandbox.close()

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run` of the sandbox."""
        return await self.sandbox.run(command, timeout_s=timeout_s, cap=cap)

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
        """As `Shell.exec` of the sandbox."""
        return await self.sandbox.exec(
            argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
        )

    async def read(self, path: str, /) -> bytes:
        """As `Files.read` of the sandbox."""
        return await self.sandbox.read(path)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write` of the sandbox."""
        await self.sandbox.write(path, data)
