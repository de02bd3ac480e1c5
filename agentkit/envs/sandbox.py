"""An env that is a sandbox: what runs commands and keeps files for the tools of one rollout."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import anyio
import attrs

from agentkit.envs.preparation import Preparation
from agentkit.errors import ConfigError, SandboxDead, SandboxError, ToolError
from agentkit.protocols.budget import env_lifetime_s
from agentkit.protocols.messages import Message
from agentkit.protocols.sandbox import ExecResult, Interactive, OutputCap, Sandbox, SandboxBackend, Terminal
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.protocols.task import Task
from agentkit.sandbox import SandboxConfig, StartPolicy, default_backend, start_sandbox

LOG = logging.getLogger("agentkit.envs")

T = TypeVar("T")
Setup: TypeAlias = Callable[[Sandbox, Task], Awaitable[Sequence[Message] | None]]
SpecFor: TypeAlias = Callable[[SandboxSpec, Task], SandboxSpec]


class SandboxEnv:
    """One sandbox for one rollout. Satisfies Env, and Shell, Files, Transfer and Interactive for tools that need them.

    `backend` and `spec`, or `sandbox`, say what is started; without either the isolated default is used. Share one
    back end between rollouts to bound how many sandboxes start at a time. `env` is added to the spec's variables, and
    `spec_for` makes the spec of a task from that of all tasks: an image of its own, say.

    A fresh sandbox is prepared with `tools`, `uploads`, `files` and `commands` (see `Preparation`), in this order;
    then `setup` does what the task asks for, and may return the messages that open the conversation.

    A start that fails for now is tried again as `starts` says, within the set-up budget. A sandbox that dies later is
    replaced by a fresh one, prepared in the same way, at most `restarts` times: the call that found it dead fails with
    a message that says so to the policy. After the last one the rollout ends as `env_dead`.

    A spec without `lifetime_s` gets what is left of the rollout's budget, grading and grace included.
    """

    def __init__(
        self,
        backend: SandboxBackend | None = None,
        spec: SandboxSpec | None = None,
        *,
        sandbox: SandboxConfig | None = None,
        spec_for: SpecFor | None = None,
        setup: Setup | None = None,
        commands: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        uploads: Mapping[str, Path] | None = None,
        tools: Sequence[Path] = (),
        env: Mapping[str, str] | None = None,
        starts: StartPolicy = StartPolicy(),  # noqa: B008  # frozen
        restarts: int = 0,
    ) -> None:
        if sandbox is not None and not isinstance(sandbox, SandboxConfig):
            raise ConfigError(
                f"sandbox must be a SandboxConfig, found {type(sandbox).__name__}: make one of a mapping by "
                "agentkit.sandbox.sandbox_from, once, and share it between the rollouts"
            )
        if sandbox is not None and (backend is not None or spec is not None):
            raise ConfigError("sandbox says what backend and spec say: give the one or the others")
        count: object = restarts
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise ConfigError(f"restarts must be a whole number >= 0, found {restarts!r}")
        self._backend = backend if sandbox is None else sandbox.backend
        given = spec or SandboxSpec() if sandbox is None else sandbox.spec
        self._spec = attrs.evolve(given, env={**given.env, **(env or {})})
        self._spec_for = spec_for
        self._setup = setup
        self._preparation = Preparation(commands=commands, files=files or {}, uploads=uploads or {}, tools=tools)
        self._starts = starts
        self._restarts = restarts
        self._restarted = 0
        self._task: Task | None = None
        self._until: float | None = None
        self._sandbox: Sandbox | None = None
        self._variables: Mapping[str, str] = {}
        self._replacing = anyio.Lock()

    @property
    def sandbox(self) -> Sandbox:
        """The started sandbox; another one after a restart.

        Raises:
            SandboxDead: it was not started, or is closed.
        """
        if self._sandbox is None:
            raise SandboxDead("the env has no sandbox: not started, or closed")
        return self._sandbox

    @property
    def restarted(self) -> int:
        """How often a sandbox that had died was replaced."""
        return self._restarted

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Start the sandbox and prepare it.

        Raises:
            ConfigError: the back end cannot give what the spec asks for, or none was given and no isolated one can
                run here.
            SandboxError: it could not be started or prepared.
        Cancellation: `close` removes what there is.
        """
        lifetime_s = env_lifetime_s()
        self._until = None if lifetime_s is None else anyio.current_time() + lifetime_s
        self._task = task
        if self._spec_for is not None:
            self._spec = self._spec_for(self._spec, task)
        if self._backend is None:
            self._backend = default_backend()
        self._sandbox = await start_sandbox(self._backend, self._lasting(), self._starts)
        self._variables = await self._preparation.prepare(self._sandbox)
        return None if self._setup is None else await self._setup(self._sandbox, task)

    async def close(self) -> None:
        """Close the sandbox, if there is one. Cancellation: shielded by the sandbox, about 5 s at most."""
        sandbox, self._sandbox = self._sandbox, None
        self._task = None
        if sandbox is not None:
            await sandbox.close()

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run` of the sandbox.

        Raises:
            ToolError: the sandbox had died and was replaced; the command was not run in the fresh one.
            SandboxDead: it is gone for good.
        Cancellation: as `Shell.run`.
        """
        return await self._alive(lambda sandbox: sandbox.run(command, timeout_s=timeout_s, cap=cap))

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
        """As `Shell.exec` of the sandbox. Raises as `run`. Cancellation: as `Shell.exec`."""

        def exec_in(sandbox: Sandbox) -> Awaitable[ExecResult]:
            merged = {**self._variables, **(env or {})} or None
            return sandbox.exec(
                argv, cwd=cwd, env=merged, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
            )

        return await self._alive(exec_in)

    async def read(self, path: str, /) -> bytes:
        """As `Files.read` of the sandbox. Raises as `run`. Cancellation: nothing is left."""
        return await self._alive(lambda sandbox: sandbox.read(path))

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write` of the sandbox. Raises as `run`. Cancellation: as `Files.write`."""
        await self._alive(lambda sandbox: sandbox.write(path, data))

    async def upload(self, source: Path, destination: str, /) -> None:
        """As `Transfer.upload` of the sandbox. Raises as `run`. Cancellation: as `Transfer.upload`."""
        await self._alive(lambda sandbox: sandbox.upload(source, destination))

    async def download(self, source: str, destination: Path, /) -> None:
        """As `Transfer.download` of the sandbox. Raises as `run`. Cancellation: as `Transfer.download`."""
        await self._alive(lambda sandbox: sandbox.download(source, destination))

    async def terminal(
        self,
        argv: Sequence[str],
        /,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        rows: int = 24,
        columns: int = 80,
    ) -> Terminal:
        """As `Interactive.terminal` of the sandbox. Raises as `run`. Cancellation: nothing is left running.

        Raises:
            ConfigError: sandboxes of this back end have no terminals.
        """

        def open_in(sandbox: Sandbox) -> Awaitable[Terminal]:
            if not isinstance(sandbox, Interactive):
                raise ConfigError(f"a terminal was asked for, but {type(sandbox).__name__} has none")
            merged = {**self._variables, **(env or {})} or None
            return sandbox.terminal(argv, cwd=cwd, env=merged, rows=rows, columns=columns)

        return await self._alive(open_in)

    def _lasting(self) -> SandboxSpec:
        """The spec with a lifetime: its own, or until the env is closed at the latest."""
        if self._spec.lifetime_s is not None or self._until is None:
            return self._spec
        return attrs.evolve(self._spec, lifetime_s=max(1.0, self._until - anyio.current_time()))

    async def _alive(self, call: Callable[[Sandbox], Awaitable[T]]) -> T:
        """What `call` returns, in the sandbox as it is; where that has died, see to the next one and say so."""
        sandbox = self.sandbox
        try:
            return await call(sandbox)
        except SandboxDead as error:
            if self._restarts == 0 or self._task is None:
                raise
            async with self._replacing:
                if self._sandbox is sandbox:  # else another call has seen to it
                    await self._replace(sandbox, error)
            raise ToolError(
                "the sandbox had died and was replaced by a fresh one: files, processes and shell state are as they "
                f"were at the start ({self._restarts - self._restarted} of {self._restarts} replacements left)"
            ) from error

    async def _replace(self, dead: Sandbox, why: SandboxDead) -> None:
        backend, task = self._backend, self._task
        if self._restarted >= self._restarts or backend is None or task is None:
            raise why
        self._restarted += 1
        LOG.warning("a sandbox died (%s) and is replaced, for the %s. time of %s", why, self._restarted, self._restarts)
        await dead.close()
        fresh: Sandbox | None = None
        try:
            fresh = await start_sandbox(backend, self._lasting(), self._starts)
            variables = await self._preparation.prepare(fresh)
            if self._setup is not None:
                await self._setup(fresh, task)
        except BaseException as error:
            if fresh is not None:
                with anyio.CancelScope(shield=True):
                    await fresh.close()
            if isinstance(error, SandboxError):
                raise SandboxDead(f"the sandbox died ({why}), and no fresh one could be had: {error}") from error
            raise
        if self._task is None:  # closed meanwhile
            await fresh.close()
            raise why
        self._sandbox, self._variables = fresh, variables
