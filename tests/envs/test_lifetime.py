"""What an env is told of its own time: enough for the worst that may come, no more than the budget says."""

import math
from typing import Any

import anyio
import pytest

from agentkit import Agent, Budget, Pool, Task
from agentkit.models import ScriptedModel
from agentkit.protocols import env_lifetime_s
from agentkit.testing import hide_behind_a_shield


class Told:
    """An env that notes what it was told, and when it began and was closed."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.start_s = start_s
        self.told: list[float | None] = []
        self.times: list[float] = []

    async def start(self, task: Task, /) -> None:
        self.told.append(env_lifetime_s())
        self.times.append(anyio.current_time())
        await anyio.sleep(self.start_s)

    async def close(self) -> None:
        await anyio.sleep(1)
        self.times.append(anyio.current_time())


async def stubborn(rollout: Any) -> None:
    await hide_behind_a_shield()


async def slow_reward(trajectory: object, env: object) -> float:
    await hide_behind_a_shield()
    return 1.0


BUDGET = Budget(trajectory_s=100, setup_s=50, reward_s=30, grace_s=5)


async def test_outside_of_a_rollout_nobody_knows() -> None:
    env = Told()
    await env.start(Task("t"))
    assert env.told == [None]


@pytest.mark.parametrize("start_s", [0, 40])
async def test_an_env_is_closed_within_its_lifetime_whatever_loop_and_reward_do(start_s: float) -> None:
    env = Told(start_s)
    await Agent(ScriptedModel([]), env=lambda: env, loop=stubborn, reward=slow_reward, budget=BUDGET).run("Go.")
    [lifetime_s], [began, closed] = env.told, env.times
    assert lifetime_s == 100 + 30 + 2 * 5
    assert 130 < closed - began <= lifetime_s  # it takes both the deadline and the reward's time, and little more


async def test_a_budget_of_the_task_and_the_wait_for_a_permit_count() -> None:
    envs: list[Told] = []

    def make() -> Told:
        envs.append(Told(start_s=20))
        return envs[-1]

    agent = Agent(ScriptedModel(["a", "b"]), env=make, budget=BUDGET)
    tasks = [Task(name, "Go.", budget={"trajectory_s": 60}) for name in "ab"]
    async with Pool(agent, max_starts=1) as pool:
        await pool.run(tasks)
    assert [env.told for env in envs] == [[60 + 30 + 10], [40 + 30 + 10]]


async def test_where_waiting_does_not_count_nobody_knows() -> None:
    env = Told()
    await Agent(ScriptedModel(["a"]), env=lambda: env, budget=Budget(count_waiting=False)).run("Go.")
    assert env.told == [None]


async def test_every_attempt_is_told_anew_and_siblings_do_not_hear_of_it() -> None:
    heard: list[float | None] = []

    class Failing(Told):
        async def start(self, task: Task, /) -> None:
            heard.append(env_lifetime_s())
            await anyio.sleep(10)
            raise OSError("no room")

    await Agent(ScriptedModel([]), env=Failing, budget=BUDGET).run("Go.")
    assert heard == [140, 140, 140]  # a try of its own each time
    assert env_lifetime_s() is None
    assert not any(value is not None and math.isinf(value) for value in heard)
