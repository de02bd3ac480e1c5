"""Whether the task's own tests come out as they should, in the sandbox as the policy left it."""

from recipes.swe.repo_env import RepoEnv, RepoTask
from recipes.swe.test_log import agree, dotted, results_of

import agentkit as ak
from agentkit.protocols import Reward

_COMPARED = ("PASSED", "FAILED", "ERROR")


def resolved(*, timeout_s: float = 240.0) -> Reward[RepoEnv]:
    """1.0 where every test named in the task's data reports what is expected of it, else 0.0.

    With `all_tests`, tests that are not named must report nothing. Tests that take longer than `timeout_s`, or that the
    policy made impossible to run, are its failure; a sandbox that died is not, and raises. Metrics: `tests_agree`, the
    share of the named tests; `tests_timed_out`; `tests_not_run`.
    """

    async def reward(trajectory: ak.Trajectory, env: RepoEnv, /) -> ak.Score:
        repo = RepoTask.of(trajectory.task)
        result = await env.test(trajectory.task, timeout_s=timeout_s)
        if result is None:
            return ak.Score(0.0, metrics={"tests_agree": 0.0, "tests_timed_out": 0.0, "tests_not_run": 1.0})
        found = results_of(result.text)
        right = agree(found, repo.expected, all_tests=repo.all_tests)
        ok = right == len(repo.expected) and not result.timed_out
        if repo.all_tests:
            ok = ok and {dotted(name) for name, status in found.items() if status in _COMPARED} <= {
                dotted(name) for name in repo.expected
            }
        return ak.Score(
            float(ok),
            metrics={
                "tests_agree": right / max(1, len(repo.expected)),
                "tests_timed_out": float(result.timed_out),
                "tests_not_run": float(not found),
            },
        )

    return reward
