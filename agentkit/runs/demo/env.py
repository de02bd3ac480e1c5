"""The demo's env: one repository in one sandbox."""

from collections.abc import Callable, Mapping, Sequence

from agentkit.errors import InvariantError, SandboxError
from agentkit.protocols.sandbox import ExecResult, OutputCap, Sandbox, SandboxBackend, SandboxSpec
from agentkit.protocols.task import Task

SETUP_TIMEOUT_S = 60.0

# the history tells how the repository came about, not what was correct; without git the task is the same
_SETUP = """
command -v git >/dev/null || exit 0
export GIT_CONFIG_NOSYSTEM=1
git init -q . && git config user.name demo && git config user.email demo@localhost && git config gc.auto 0 || exit 1
git add README.md .gitignore && git commit -q -m "Start the project" || exit 1
git add . && git commit -q -m "Add the package and its tests"
"""

SPEC = SandboxSpec(env={"PYTHONDONTWRITEBYTECODE": "1", "GIT_PAGER": "cat"})


class BugRepoEnv:
    """A repository with a bug, in a sandbox of `backend`; satisfies Shell and Files.

    `task` is what it was started with: the grader finds the hidden tests there, the policy has no way to it.
    """

    def __init__(self, backend: SandboxBackend) -> None:
        self._backend = backend
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None

    @property
    def task(self) -> Task:
        """The task of this env, once started."""
        if self._task is None:
            raise InvariantError("the env is asked for its task before it was started")
        return self._task

    @property
    def _inside(self) -> Sandbox:
        if self._sandbox is None:
            raise InvariantError("the env is used before it was started")
        return self._sandbox

    async def start(self, task: Task, /) -> None:
        """Start a sandbox, write the files of the repository and commit them.

        Raises:
            SandboxError: the sandbox or the repository could not be made.
        Cancellation: what was made is left to `close`.
        """
        self._task = task
        self._sandbox = await self._backend.start(SPEC)
        files = task.data["files"]
        if not isinstance(files, Mapping):
            raise SandboxError(f"task {task.id!r} carries no files")
        for path, text in files.items():
            await self._sandbox.write(path, text.encode())
        result = await self._sandbox.exec(["bash", "-c", _SETUP], timeout_s=SETUP_TIMEOUT_S)
        if result.exit_code != 0:
            raise SandboxError(f"the repository of task {task.id!r} could not be made: {result.text[-500:]!r}")

    async def close(self) -> None:
        """Close the sandbox, if there is one.

        Cancellation: as `Lifecycle.close` of the sandbox.
        """
        if self._sandbox is not None:
            await self._sandbox.close()

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run`.

        Cancellation: as `Shell.run`.
        """
        return await self._inside.run(command, timeout_s=timeout_s, cap=cap)

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
        """As `Shell.exec`.

        Cancellation: as `Shell.exec`.
        """
        return await self._inside.exec(
            argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
        )

    async def read(self, path: str, /) -> bytes:
        """As `Files.read`.

        Cancellation: nothing has changed.
        """
        return await self._inside.read(path)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write`.

        Cancellation: as `Files.write`.
        """
        await self._inside.write(path, data)
