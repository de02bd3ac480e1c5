"""Rollouts that do not come to their own end leave nothing behind on the server."""

from typing import Any

import anyio
import pytest
from agentkit_openai import CompletionsModel

import agentkit as ak
from agentkit.testing import MemorySink

pytestmark = [pytest.mark.servers, pytest.mark.timeout(120)]

ENDLESS = {"ignore_eos": True, "min_tokens": 1900}
"""Seconds of sampling, whatever the policy would rather do."""


class Nagging:
    """An env that is never content."""

    async def start(self, task: ak.Task) -> None: ...

    async def step(self, action: ak.Action) -> ak.Observation:
        return ak.Observation("go on " * 50)

    async def close(self) -> None: ...


async def test_a_deadline_in_mid_generation_keeps_what_was_sampled_and_frees_the_server(
    model: CompletionsModel, work: Any
):
    agent = ak.Agent(model, params=ENDLESS, budget=ak.Budget(generation_s=3))
    async with ak.Pool(agent) as pool:
        trajectories = await pool.run([f"hi {n}" for n in range(16)])
        sampled = await work.quiet()
    kept = 0
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
        (turn,) = trajectory.turns
        assert turn.stop - turn.start < 1900
        assert all(value < 0 for value in trajectory.chains[0].logprobs[turn.start : turn.stop])
        kept += turn.stop - turn.start
    assert 0 < kept <= sampled < 16 * 1900


async def test_leaving_a_pool_frees_the_server(model: CompletionsModel, work: Any):
    sink = MemorySink()
    async with ak.Pool(ak.Agent(model, params=ENDLESS), sink=sink) as pool:
        pool.pause()  # all sample from one moment on: on a busy machine the first would fill the window before the last
        async with pool.run([ak.Task(f"t{n}", "hi") for n in range(80)]):  # more than the server runs at once
            while len(sink.begun) < 80:
                await anyio.sleep(0.05)
            pool.resume()
            while await work.since("vllm:generation_tokens_total") < 64 * 10:
                await anyio.sleep(0.05)
        assert await work.quiet() < 64 * 1900
    assert pool.stuck == ()
    assert [each.exit_reason for each in sink.trajectories] == [ak.ExitReason.CANCELLED] * 80
    assert sum(any(each.chains[0].response_mask) for each in sink.trajectories if each.chains) >= 32


async def test_a_full_window_is_the_token_limit(model: CompletionsModel, work: Any):
    agent = ak.Agent(model, env=Nagging, params={"structured_outputs": {"regex": "[a-z]{200}"}})
    async with ak.Pool(agent, group_size=4) as pool:
        trajectories = await pool.run([ak.Task("t", "hi")])
    await work.quiet()
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.TOKEN_LIMIT
        assert trajectory.blame is ak.Blame.POLICY
        assert trajectory.turns[-1].stop <= 2048
        assert len(trajectory.turns) > 3
