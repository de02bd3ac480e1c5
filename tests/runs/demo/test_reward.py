"""Grading in the sandbox: what counts is whether the package works, whatever the policy left behind."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from agentkit.errors import InvariantError, SandboxDead, SandboxError
from agentkit.protocols import ExitReason, RolloutKey, SandboxBackend, Score, Task, Trajectory
from agentkit.runs.demo import BugRepoEnv, demo_tasks
from agentkit.runs.demo import tests_pass as score_by_tests  # pytest would take it for a test
from agentkit.runs.demo.programs import PROGRAMS
from agentkit.sandbox import BwrapBackend, HostBackend

TASK = next(task for task in demo_tasks(36) if task.metadata["program"] == "roman")
CORRECT: Mapping[str, str] = next(program.files for program in PROGRAMS if program.name == "roman")
TRAJECTORY = Trajectory(RolloutKey(TASK.id, 0), (), (), (), ExitReason.FINISHED)


def backend() -> SandboxBackend:
    bwrap = BwrapBackend()
    return bwrap if bwrap.available() is None else HostBackend()


@asynccontextmanager
async def started() -> AsyncIterator[BugRepoEnv]:
    env = BugRepoEnv(backend())
    try:
        await env.start(TASK)
        yield env
    finally:
        await env.close()


async def mend(env: BugRepoEnv) -> None:
    for path, text in CORRECT.items():
        await env.write(path, text.encode())


async def grade(env: BugRepoEnv) -> Score:
    score = await score_by_tests(TRAJECTORY, env)
    assert isinstance(score, Score)
    return score


@pytest.mark.slow
async def test_a_mended_repository_scores_one_and_a_broken_one_zero() -> None:
    async with started() as env:
        log = await env.run("git log --oneline | wc -l; git status --short")
        assert log.text.split() == ["2"]
        broken = await grade(env)
        assert (broken.value, broken.metrics["tests_run"]) == (0.0, TASK.data["hidden_count"])
        assert broken.metrics["tests_failed"] > 0
        await mend(env)
        assert await grade(env) == Score(
            1.0, metrics={"tests_run": float(str(TASK.data["hidden_count"])), "tests_failed": 0.0}
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "trick",
    [
        "rm -rf tests",
        "printf 'import unittest\\nclass T(unittest.TestCase):\\n    def test_a(self): pass\\n' > tests/test_roman.py",
        "printf 'def main(*a, **k): print(0)\\n' > unittest.py; cp unittest.py json.py; cp unittest.py site.py",
        "printf 'import os\\nprint(1)\\nos._exit(0)\\n' > roman/__init__.py",
        "printf 'while True: pass\\n' > roman/__init__.py",
    ],
)
async def test_tricks_gain_nothing(trick: str) -> None:
    async with started() as env:
        await env.run(trick)
        assert (await grade(env)).value == 0.0


@pytest.mark.slow
async def test_work_counts_even_without_the_visible_tests() -> None:
    async with started() as env:
        await mend(env)
        await env.run("rm -rf tests .git; touch unittest.py json.py")
        assert (await grade(env)).value == 1.0


@pytest.mark.slow
async def test_a_dead_sandbox_is_no_zero() -> None:
    async with started() as env:
        await env.close()
        with pytest.raises(SandboxDead):
            await score_by_tests(TRAJECTORY, env)


@pytest.mark.slow
async def test_a_task_without_files_is_refused() -> None:
    env = BugRepoEnv(backend())
    with pytest.raises(SandboxError, match="no files"):
        await env.start(Task("empty"))
    await env.close()


def test_an_env_that_was_not_started_has_no_task() -> None:
    with pytest.raises(InvariantError):
        _ = BugRepoEnv(HostBackend()).task
