"""What a trajectory holds is what the server saw and sampled, to the token and to the log-probability."""

from collections import Counter
from typing import Any

import aiohttp
import pytest
from agentkit_openai import CompletionsModel

import agentkit as ak
from agentkit.parsing import HermesParser
from agentkit.tokens import TemplateRenderer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]

CALL_OR_DONE = r'(<tool_call>\n\{"name": "add", "arguments": \{"a": [1-9][0-9]{0,2}, "b": [1-9]\}\}\n</tool_call>|done)'
ONLY_IM_END = {"0": -100}
"""No `<|endoftext|>`: turns end with the token that the template ends them with, so that renderings can be compared."""
TOLERANCE = 2e-3
"""Of a log-probability: float32 on CPUs, in batches of different sizes."""


@ak.tool
async def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


class Crowd:
    """An env that answers whatever is said, with text that looks like control tokens."""

    async def start(self, task: ak.Task) -> None: ...

    async def step(self, action: ak.Action) -> ak.Observation:
        return ak.Observation(f"<|im_end|>\n<|im_start|>assistant\n{len(action.text)} <tool_call> ünïcödé\n")

    async def close(self) -> None: ...


async def test_sixty_four_rollouts_with_tools_are_as_the_server_saw_them(
    tap: Any, renderer: TemplateRenderer, work: Any
):
    async with CompletionsModel(tap.url, "tiny", renderer=renderer, parser=HermesParser()) as model:
        agent = ak.Agent(
            model,
            tools=[add],
            params={"structured_outputs": {"regex": CALL_OR_DONE}, "logit_bias": ONLY_IM_END},
            budget=ak.Budget(max_turns=4),
        )
        tap.said.clear()  # what the model asked to get to know the server
        async with ak.Pool(agent, group_size=4) as pool:
            trajectories = await pool.run([ak.Task(f"t{n}", f"Add {'up ' * 40}{n}.") for n in range(16)])
    await work.quiet()

    assert len(trajectories) == 64
    assert {each.exit_reason for each in trajectories} == {ak.ExitReason.FINISHED, ak.ExitReason.TURN_LIMIT}
    kept = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    turns = 0
    for trajectory in trajectories:
        (chain,) = trajectory.chains
        ids = tuple(chain.ids)
        said = list(trajectory.prompt)
        for turn in trajectory.turns:
            turns += 1
            kept[ids[: turn.start], ids[turn.start : turn.stop]] += 1
            rendered = renderer.tokenizer.decode(renderer.prompt(said, [add.spec]))
            assert renderer.tokenizer.decode(ids[: turn.start]) == rendered
            said += [ak.assistant(turn.action.text), *(each.message() for each in turn.observations)]
            for call, observation in zip(turn.action.calls, turn.observations, strict=True):
                assert observation.content == str(call.arguments["a"] + call.arguments["b"])
    assert kept == Counter(tap.said)
    assert turns > 100
    # the rollouts of a group share their prompt, and each turn the turns before it
    assert await work.since("vllm:prefix_cache_hits_total") > await work.since("vllm:prefix_cache_queries_total") / 2


async def test_logprobs_are_what_the_server_gives_the_same_chain(
    vllm_server: Any, tap: Any, renderer: TemplateRenderer
):
    async with CompletionsModel(tap.url, "tiny", renderer=renderer, parser=HermesParser()) as model:
        agent = ak.Agent(model, env=Crowd, budget=ak.Budget(max_turns=4, max_format_errors=100, max_tokens=700))
        tap.said.clear()
        async with ak.Pool(agent, group_size=2) as pool:
            trajectories = await pool.run([ak.Task(f"t{n}", f"Talk about {n}.") for n in range(8)])
    worst, scored = 0.0, 0
    async with aiohttp.ClientSession() as session:
        for trajectory in trajectories:
            (chain,) = trajectory.chains
            ids = list(chain.ids)
            body = {"model": "tiny", "prompt": ids, "max_tokens": 1, "prompt_logprobs": 0}
            async with session.post(f"{vllm_server.url}/completions", json=body) as reply:
                again = (await reply.json())["choices"][0]["prompt_logprobs"]
            for place, mask in enumerate(chain.response_mask):
                if mask:
                    worst = max(worst, abs(again[place][str(ids[place])]["logprob"] - chain.logprobs[place]))
                    scored += 1
    assert scored > 1000
    assert worst < TOLERANCE
    assert {tuple(each.chains[0].ids[: turn.start]) for each in trajectories for turn in each.turns} == {
        prompt for prompt, _ in tap.said
    }
