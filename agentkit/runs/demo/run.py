"""The demo as a run: an agent in a pool with a journal."""

import os
from collections.abc import Callable

from agentkit.actors import Agent, Pool
from agentkit.journal import Journal
from agentkit.models import ScriptedModel
from agentkit.protocols.budget import Budget
from agentkit.protocols.sandbox import SandboxBackend
from agentkit.protocols.trajectory import Trajectory
from agentkit.runs.demo.env import BugRepoEnv
from agentkit.runs.demo.policy import ScriptedBugFixer
from agentkit.runs.demo.reward import tests_pass
from agentkit.runs.demo.tasks import demo_tasks
from agentkit.tools import execute_bash, submit

BUDGET = Budget(
    trajectory_s=300.0,
    setup_s=60.0,
    generation_s=30.0,
    tool_s=12.0,
    reward_s=90.0,
    grace_s=5.0,
    max_turns=16,
    max_tool_timeouts=2,
    max_format_errors=3,
)
"""A tool call is cut after seconds, not minutes: an endless loop is among the bugs. Turns run out for the stubborn."""


async def run_demo(
    backend: SandboxBackend,
    out: "str | os.PathLike[str]",
    *,
    tasks: int = 36,
    concurrency: int = 16,
    seed: int = 0,
    budget: Budget = BUDGET,
    on_trajectory: Callable[[Trajectory], None] = lambda trajectory: None,
) -> tuple[Trajectory, ...]:
    """The trajectories of `tasks` demo tasks, `concurrency` at a time, in the order they ended; journalled in `out`.

    Rollouts that the journal already holds are not run again, nor returned.

    Raises:
        ConfigError: there are not so many tasks, or a number is out of range.
        JournalError: `out` cannot be written.
    Cancellation: every rollout is sealed as `cancelled` and every sandbox closed.
    """
    agent = Agent(
        ScriptedModel(ScriptedBugFixer()),
        env=lambda: BugRepoEnv(backend),
        tools=[execute_bash, submit],
        reward=tests_pass,
        budget=budget,
        name="demo",
    )
    ended = []
    async with (
        Journal.open(out) as journal,
        Pool(agent, max_rollouts=concurrency, max_starts=8, sink=journal) as pool,
    ):
        async for trajectory in pool.run(demo_tasks(tasks, seed=seed)):
            ended.append(trajectory)
            on_trajectory(trajectory)
    return tuple(ended)
