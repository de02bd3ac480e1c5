"""Whole rollouts on a real engine: tools, groups, budgets, leaving early."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from agentkit_vllm import VLLMModel

import agentkit as ak
from agentkit.protocols import FinishReason, SpanKind
from agentkit.testing import MemorySink
from agentkit.tokens import TemplateRenderer

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn at import
]

CALL_OR_DONE = r'(<tool_call>\n\{"name": "add", "arguments": \{"a": [1-9][0-9]{0,2}, "b": [1-9]\}\}\n</tool_call>|done)'
ENDLESS = {"ignore_eos": True, "min_tokens": 1900}


@ak.tool
async def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


async def test_groups_with_tools_are_token_exact(
    model: VLLMModel, tiny_renderer: TemplateRenderer, idle: Callable[[], Awaitable[None]]
):
    agent = ak.Agent(
        model,
        tools=[add],
        params={"structured_outputs": {"regex": CALL_OR_DONE}, "logit_bias": {"0": -100}},  # ends turns as templates do
        budget=ak.Budget(max_turns=4, max_tokens=1500),
    )
    async with ak.Pool(agent, group_size=4) as pool:
        trajectories = await pool.run([ak.Task(f"t{n}", f"Add {n}.") for n in range(16)])
    await idle()
    assert len(trajectories) == 64
    assert {trajectory.exit_reason for trajectory in trajectories} == {
        ak.ExitReason.FINISHED,
        ak.ExitReason.TURN_LIMIT,
    }
    decode = tiny_renderer.tokenizer.decode
    for trajectory in trajectories:
        (chain,) = trajectory.chains
        ids = chain.ids.tolist()
        said = list(trajectory.prompt)
        for turn in trajectory.turns:
            # the template's own rendering of all that was said before, sampled text verbatim
            assert decode(ids[: turn.start]) == decode(tiny_renderer.prompt(said, [add.spec]))
            assert tiny_renderer.decode(ids[turn.start : turn.stop]) == turn.action.text
            assert turn.action.finish is FinishReason.STOP
            for call, observation in zip(turn.action.attempts, turn.observations, strict=True):
                assert observation.content == str(call.arguments["a"] + call.arguments["b"])
            said += [ak.assistant(turn.action.text), *(each.message() for each in turn.observations)]
        sampled = [(span.start, span.stop) for span in chain.spans if span.kind is SpanKind.SAMPLED]
        assert sampled == [(turn.start, turn.stop) for turn in trajectory.turns]
        assert trajectory.policy_versions() == (7, 7)


async def test_a_deadline_keeps_what_was_sampled(model: VLLMModel, idle: Callable[[], Awaitable[None]]):
    agent = ak.Agent(model, params=ENDLESS, budget=ak.Budget(generation_s=3))
    async with ak.Pool(agent) as pool:
        trajectories = await pool.run([f"hi {n}" for n in range(16)])
        await idle()
    assert any(trajectory.turns[0].stop > trajectory.turns[0].start for trajectory in trajectories)
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
        (turn,) = trajectory.turns
        assert turn.stop - turn.start < 1900
        assert all(value < 0 for value in trajectory.chains[0].logprobs[turn.start : turn.stop])


async def test_leaving_a_pool_frees_the_engine(model: VLLMModel, idle: Callable[[], Awaitable[None]]):
    sink = MemorySink()
    agent = ak.Agent(model, params=ENDLESS)
    async with ak.Pool(agent, sink=sink) as pool, pool.run([ak.Task(f"t{n}", "hi") for n in range(16)]):
        await anyio.sleep(1)
    await idle()
    assert pool.stuck == ()
    assert [trajectory.exit_reason for trajectory in sink.trajectories] == [ak.ExitReason.CANCELLED] * 16
    assert all(len(trajectory.turns) == 1 for trajectory in sink.trajectories)


async def test_a_full_window_ends_a_rollout_as_the_token_limit(model: VLLMModel):
    class Echo:
        async def start(self, task: ak.Task) -> None: ...

        async def step(self, action: ak.Action) -> ak.Observation:
            return ak.Observation("go on " * 40)

        async def close(self) -> None: ...

    agent = ak.Agent(model, env=Echo, params={"structured_outputs": {"regex": "[a-z]{300}"}})
    trajectory = await agent.run("hi")
    assert trajectory.exit_reason is ak.ExitReason.TOKEN_LIMIT
    assert len(trajectory.chains[0].ids) <= 2048 + 200  # the bridge that did not fit was appended; nothing was sampled
    assert len(trajectory.turns) > 1
