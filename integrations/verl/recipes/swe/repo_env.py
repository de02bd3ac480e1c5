"""An env that is a repository in the container image of its task, its tests out of sight until they are wanted.

Any back end that starts images will do; what this module asks of an image is a shell, git and tar.

The data of a task:
    image         the container image
    directory     where the repository is in it
    env           variables for all commands, PATH among them
    base_commit   the commit the policy starts from (optional: the HEAD of the image)
    hidden        files and folders of the tests in the image, taken out before the policy starts (R2E-Gym)
    test_patch    a patch that adds the tests, applied after the policy is done (SWE-rebench)
    test_command  what runs the tests, in `directory`
    expected      {name of a test: PASSED, FAILED or ERROR}
    all_tests     whether `expected` names every test that may report a status (R2E-Gym), or some of them
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, frozen

from agentkit.envs import SandboxEnv
from agentkit.errors import ConfigError, SandboxError
from agentkit.protocols import Capable, ExecResult, Message, OutputCap, Sandbox, SandboxSpec, Task
from agentkit.sandbox import SandboxConfig, StartPolicy

_PACK: Final = "/tmp/hidden-tests.tar"  # noqa: S108  # a path in the sandbox
_PATCH: Final = "/tmp/tests.patch"  # noqa: S108
_CAP: Final = OutputCap(head_bytes=100_000, tail_bytes=8_000_000)  # the summary of a large suite is long, and last

# Refs, tags and reflogs lead to the commit that is asked for: only what HEAD descends from is left.
_FORGET: Final = """
set -e
git remote | xargs -r -n1 git remote remove
git checkout -q --detach
git for-each-ref --format='%(refname)' | xargs -r -n1 git update-ref -d
rm -f .git/FETCH_HEAD .git/ORIG_HEAD
git reflog expire --expire=now --all
git gc --quiet --prune=now
"""


@frozen
class RepoTask:
    """The data of a task, checked."""

    image: str
    directory: str
    test_command: str
    expected: Mapping[str, str]
    all_tests: bool
    env: Mapping[str, str] = field(factory=dict)
    hidden: Sequence[str] = ()
    test_patch: str = ""
    base_commit: str = ""

    @classmethod
    def of(cls, task: Task) -> "RepoTask":
        """The fields of `task.data`.

        Raises:
            ConfigError: one is missing or of the wrong kind.
        """
        found: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            value = task.data.get(name)
            if value is None and name not in _NEEDED:
                continue
            if not isinstance(value, kind):
                raise ConfigError(f"task {task.id!r}: data.{name} must be a {kind.__name__}, found {value!r:.80}")
            found[name] = value
        return cls(**found)

    @property
    def test_files(self) -> tuple[str, ...]:
        """The files that the test patch touches."""
        found = re.findall(r"^(?:---|\+\+\+) (?:[ab]/)?(\S+)", self.test_patch, re.MULTILINE)
        return tuple(dict.fromkeys(path for path in found if path != "/dev/null"))


_NEEDED: Final = ("image", "directory", "test_command", "expected", "all_tests")
_KINDS: Mapping[str, type] = {
    "image": str,
    "directory": str,
    "test_command": str,
    "expected": dict,
    "all_tests": bool,
    "env": dict,
    "hidden": list,
    "test_patch": str,
    "base_commit": str,
}


class RepoEnv:
    """One sandbox in the image of its task. Satisfies Env, and Shell and Files for the tools that need them.

    `sandbox` says what starts it, and what all tasks have in common; a start is tried again as `starts` says.
    """

    def __init__(
        self,
        sandbox: SandboxConfig,
        *,
        starts: StartPolicy = StartPolicy(),  # noqa: B008  # frozen
        forget_history: bool = True,
    ) -> None:
        if isinstance(sandbox.backend, Capable) and not sandbox.backend.capabilities.image:
            raise ConfigError(f"sandbox.type must be of sandboxes that start images, found {sandbox.type!r}")
        self._forget_history = forget_history
        self._env = SandboxEnv(sandbox=sandbox, spec_for=_spec_for, setup=self._set_up, starts=starts)
        self._packed = b""
        self._base = ""

    async def start(self, task: Task, /) -> Sequence[Message] | None:
        """Start the sandbox, and take out of it what the policy must not see.

        Raises:
            ConfigError: the task's data cannot be used.
            SandboxError: the image has no such repository, or its tests could not be put in place as it stands.
        Cancellation: `close` removes what there is.
        """
        return await self._env.start(task)

    async def close(self) -> None:
        """Close the sandbox. Cancellation: as `SandboxEnv.close`."""
        await self._env.close()

    async def test(self, task: Task, *, timeout_s: float) -> ExecResult | None:
        """How the tests ended, put in place and run in a process of their own; None where there was no place for them.

        In the sandbox as it was made there was one, so that is the policy's doing.

        Raises:
            SandboxDead: the sandbox is gone.
        Cancellation: the tests are killed.
        """
        repo = RepoTask.of(task)
        sandbox = self._sandbox
        steps: list[str] = []
        if repo.hidden:
            await sandbox.write(_PACK, self._packed)
            steps += [f"rm -rf -- {_words(repo.hidden)}", f"tar -C / -xf {_PACK}"]
            for path in repo.hidden:
                if not path.startswith(f"{repo.directory}/"):  # run_tests.sh says where it is from below the repository
                    link = shlex.quote(path.rpartition("/")[2])
                    steps.append(f"rm -rf -- {link} && ln -s {shlex.quote(path)} {link}")
        if repo.test_patch:
            await sandbox.write(_PATCH, repo.test_patch.encode())
            for file in map(shlex.quote, repo.test_files):
                steps.append(f"{{ git checkout -q {self._base} -- {file} 2>/dev/null || rm -rf -- {file}; }}")
            steps.append(f"git apply {_PATCH}")
        if steps:
            placed = await self._run(sandbox, repo, " && ".join(steps), timeout_s=60.0)
            if placed.exit_code != 0:
                return None
        return await self._run(sandbox, repo, repo.test_command, timeout_s=timeout_s)

    async def run(self, command: str, /, *, timeout_s: float | None = None, cap: OutputCap = OutputCap()) -> ExecResult:  # noqa: B008  # frozen
        """As `Shell.run` of the sandbox."""
        return await self._sandbox.run(command, timeout_s=timeout_s, cap=cap)

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
        return await self._sandbox.exec(
            argv, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, cap=cap, on_output=on_output
        )

    async def read(self, path: str, /) -> bytes:
        """As `Files.read` of the sandbox."""
        return await self._sandbox.read(path)

    async def write(self, path: str, data: bytes, /) -> None:
        """As `Files.write` of the sandbox."""
        await self._sandbox.write(path, data)

    @property
    def _sandbox(self) -> Sandbox:
        return self._env.sandbox

    async def _set_up(self, sandbox: Sandbox, task: Task) -> None:
        repo = RepoTask.of(task)
        await self._checked(sandbox, repo, 'git config --global --add safe.directory "$PWD"')
        if repo.base_commit:
            await self._checked(sandbox, repo, f"git checkout -q --force {shlex.quote(repo.base_commit)}")
        self._base = (await self._checked(sandbox, repo, "git rev-parse HEAD")).text.strip()
        if self._forget_history:
            await self._checked(sandbox, repo, _FORGET)
        if repo.hidden:
            self._packed = await self._taken_out(sandbox, repo)
        if repo.test_patch:
            await sandbox.write(_PATCH, repo.test_patch.encode())
            await self._checked(sandbox, repo, f"git apply --check {_PATCH} && rm {_PATCH}")

    async def _taken_out(self, sandbox: Sandbox, repo: RepoTask) -> bytes:
        relative = [path.lstrip("/") for path in repo.hidden]
        await self._checked(sandbox, repo, f"tar -C / -cf {_PACK} -- {_words(relative)}")
        packed = await sandbox.read(_PACK)
        await self._checked(sandbox, repo, f"rm -rf -- {_PACK} {_words(repo.hidden)}")
        return packed

    async def _checked(self, sandbox: Sandbox, repo: RepoTask, command: str) -> ExecResult:
        result = await self._run(sandbox, repo, command, timeout_s=None)
        if result.exit_code != 0:
            told = result.text.strip()[-500:]
            raise SandboxError(
                f"image {repo.image!r} cannot be used in {repo.directory}: {command.strip()[:80]!r} ended with "
                f"{result.exit_code}: {told}"
            )
        return result

    async def _run(self, sandbox: Sandbox, repo: RepoTask, command: str, *, timeout_s: float | None) -> ExecResult:
        return await sandbox.exec(["bash", "-c", command], cwd=repo.directory, timeout_s=timeout_s, cap=_CAP)


def _words(paths: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, paths))


def _spec_for(spec: SandboxSpec, task: Task) -> SandboxSpec:
    repo = RepoTask.of(task)
    return evolve(spec, image=repo.image, cwd=repo.directory, env={**spec.env, **repo.env})
