"""The demo's env: one repository in one sandbox."""

from collections.abc import Mapping, Sequence

from agentkit.envs import SandboxEnv
from agentkit.errors import InvariantError, SandboxError
from agentkit.protocols.messages import Message
from agentkit.protocols.sandbox import Sandbox, SandboxBackend
from agentkit.protocols.sandbox_spec import SandboxSpec
from agentkit.protocols.task import Task

SETUP_TIMEOUT_S = 60.0

SPEC = SandboxSpec(env={"PYTHONDONTWRITEBYTECODE": "1", "GIT_PAGER": "cat"})

# the history tells how the repository came about, not what was correct; without git the task is the same
_SETUP = """
command -v git >/dev/null || exit 0
export GIT_CONFIG_NOSYSTEM=1
git init -q . && git config user.name demo && git config user.email demo@localhost && git config gc.auto 0 || exit 1
git add README.md .gitignore && git commit -q -m "Start the project" || exit 1
git add . && git commit -q -m "Add the package and its tests"
"""


class BugRepoEnv(SandboxEnv):
    """A repository with a bug, in a sandbox of `backend`.

    It keeps its task: the grader finds the hidden tests there, and the policy has no way to it.
    """

    def __init__(self, backend: SandboxBackend) -> None:
        super().__init__(backend, SPEC, setup=put_repository)
        self._started_with: Task | None = None

    @property
    def task(self) -> Task:
        """What the env was started with."""
        if self._started_with is None:
            raise InvariantError("the env is asked for its task before it was started")
        return self._started_with

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Start the sandbox and put the repository into it.

        Raises:
            SandboxError: the sandbox or the repository could not be made.
        Cancellation: as `SandboxEnv.start`.
        """
        self._started_with = task
        return await super().start(task)


async def put_repository(sandbox: Sandbox, task: Task) -> None:
    """Write the files of `task` into the sandbox's working directory and commit them where git is at hand.

    Raises:
        SandboxError: the sandbox failed, or the task has no files.
    Cancellation: the repository is half written.
    """
    files = task.data.get("files")
    if not isinstance(files, Mapping):
        raise SandboxError(f"task {task.id!r} carries no files")
    for path, text in files.items():
        await sandbox.write(path, text.encode())
    result = await sandbox.exec(["bash", "-c", _SETUP], timeout_s=SETUP_TIMEOUT_S)
    if result.exit_code != 0:
        raise SandboxError(f"the repository of task {task.id!r} could not be made: {result.text[-500:]!r}")
