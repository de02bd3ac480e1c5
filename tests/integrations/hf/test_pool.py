"""Whole rollouts on a model in this process: chains against the tokenizer's own rendering, budgets, cancellation."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from agentkit_hf import HFModel

import agentkit as ak
from agentkit.protocols import CallFault, FinishReason, Parsed, SpanKind, ToolSpec

pytestmark = pytest.mark.servers

GAP = 2e-4


class Counting:
    """Asks for the next number, three times."""

    async def start(self, task: ak.Task) -> Sequence[ak.Message]:
        self.turn = 0
        return [ak.system("Count."), ak.user(f"{task.id}: go on after {len(task.id)}\n")]

    async def step(self, action: ak.Action) -> ak.Observation:
        self.turn += 1
        return ak.Observation(f"\nand after {self.turn}<|im_end|>?", done=self.turn == 3)

    async def close(self) -> None: ...


class JustText:
    """Reads no calls: a random model writes half of one now and then."""

    def begin(self, tools: Sequence[ToolSpec], /) -> "JustText":
        self.text = ""
        return self

    def feed(self, text: str, /) -> None:
        self.text += text

    def finish(self, reason: FinishReason, /) -> Parsed:
        return Parsed(self.text)


class EveryTurnCalls:
    """Reads each turn of a random model as a call of the first tool, so that tools have something to do."""

    def begin(self, tools: Sequence[ToolSpec], /) -> "EveryTurnCalls":
        self.name = tools[0].name
        self.text = ""
        return self

    def feed(self, text: str, /) -> None:
        self.text += text

    def finish(self, reason: FinishReason, /) -> Parsed:
        attempts: tuple[ak.ToolCall | CallFault, ...] = (ak.ToolCall("x", self.name, {}),)
        return Parsed(self.text, None, attempts)


@ak.tool
async def look() -> str:
    """Look around."""
    return "<|im_start|>a door\n"


def as_wire(spec: ToolSpec) -> dict[str, Any]:
    function = {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
    return {"type": "function", "function": function}


def check_chain(trajectory: ak.Trajectory) -> None:
    (chain,) = trajectory.chains
    for span in chain.spans:
        assert set(chain.response_mask[span.start : span.stop]) == {int(span.kind is SpanKind.SAMPLED)}
    for turn in trajectory.turns:
        assert all(chain.response_mask[turn.start : turn.stop])


@pytest.fixture
def messages() -> Callable[[ak.Trajectory], list[ak.Message]]:
    """The conversation of a trajectory, as it was said."""

    def said(trajectory: ak.Trajectory) -> list[ak.Message]:
        found = list(trajectory.prompt)
        for turn in trajectory.turns:
            found.append(ak.assistant(turn.action.text))
            found += [observation.message() for observation in turn.observations]
        return found

    return said


def until_generation(rendered: list[int], chain: ak.Chain) -> list[int]:
    """The part of a full rendering that a chain has: it ends with what was sampled last."""
    return rendered[: len(chain)]


async def test_multi_turn_rollouts_equal_the_tokenizers_own_rendering(
    make_module: Callable[..., Any], tokenizer: Any, full_render: Any, messages: Any, rescore: Any
):
    module = make_module()
    async with HFModel(module, tokenizer=tokenizer, kept_caches=3) as model:
        budget = ak.Budget(max_tokens=400, max_turns=10)
        params = {"max_tokens": 20, "temperature": 0.9}
        agent = ak.Agent(model, env=Counting, parser=JustText(), budget=budget, params=params)
        async with ak.Pool(agent, group_size=2) as pool:
            trajectories = await pool.run([ak.Task(f"task-{i}") for i in range(6)])
    assert len(trajectories) == 12
    for trajectory in trajectories:
        assert (trajectory.exit_reason, trajectory.error) == (ak.ExitReason.FINISHED, None)
        assert len(trajectory.turns) == 3
        check_chain(trajectory)
        (chain,) = trajectory.chains
        rendered = full_render(tokenizer, trajectory, messages(trajectory))
        assert list(chain.ids) == until_generation(rendered, chain)
        sampled = [i for i, mask in enumerate(chain.response_mask) if mask]
        expected = rescore(module, chain.ids.tolist(), 1, temperature=0.9)
        assert max(abs(chain.logprobs[i] - expected[i - 1]) for i in sampled) < GAP


async def test_rollouts_with_tools_equal_the_tokenizers_own_rendering(
    make_module: Callable[..., Any], tokenizer: Any, full_render: Any, messages: Any
):
    async with HFModel(make_module(), tokenizer=tokenizer) as model:
        agent = ak.Agent(
            model, tools=[look], parser=EveryTurnCalls(), budget=ak.Budget(max_turns=3), params={"max_tokens": 9}
        )
        async with ak.Pool(agent) as pool:
            trajectories = await pool.run([ak.Task(str(i), f"Where is {i}?") for i in range(4)])
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.TURN_LIMIT, trajectory.error
        (chain,) = trajectory.chains
        rendered = full_render(tokenizer, trajectory, messages(trajectory), [as_wire(look.spec)])
        assert list(chain.ids) == until_generation(rendered, chain)
        control = tokenizer.convert_tokens_to_ids("<|im_start|>")
        observed = [chain.ids[s.start : s.stop].tolist() for s in chain.spans if s.kind is SpanKind.OBSERVATION]
        assert [ids.count(control) for ids in observed] == [2] * len(observed)  # the tool's own is plain text


async def test_a_generation_budget_cuts_and_keeps_the_tokens(
    make_module: Callable[..., Any], tokenizer: Any, rescore: Any
):
    module = make_module()
    slow = module.register_forward_pre_hook(lambda *_: time.sleep(0.03))
    async with HFModel(module, tokenizer=tokenizer) as model:
        agent = ak.Agent(model, budget=ak.Budget(generation_s=1.0, max_tokens=500))
        trajectory = await agent.run("Go on and on.")
        slow.remove()
    if trajectory.exit_reason is ak.ExitReason.FINISHED:  # it may sample a stop token early, one time in a hundred
        return
    assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
    (chain,) = trajectory.chains
    start = trajectory.turns[0].start
    assert 0 < len(chain) - start < 60
    check_chain(trajectory)
    expected = rescore(module, chain.ids.tolist(), start)
    assert max(abs(a - b) for a, b in zip(chain.logprobs[start:], expected, strict=True)) < GAP


async def test_cancelling_a_pool_frees_the_model_for_others(make_module: Callable[..., Any], tokenizer: Any, ask: Any):
    module = make_module()
    async with HFModel(module, tokenizer=tokenizer, interleave=2) as model:
        agent = ak.Agent(model, budget=ak.Budget(max_tokens=500))
        with anyio.move_on_after(0.5):
            async with ak.Pool(agent) as pool:
                await pool.run([ak.Task(str(i), "Go on and on.") for i in range(200)])
        with anyio.fail_after(20):
            assert (await ask(model, [5, 6, 7], max_tokens=3)).ids
        passes: list[int] = []
        module.register_forward_pre_hook(lambda *_: passes.append(1))
        await anyio.sleep(0.3)
        assert passes == []
    assert [each.name for each in threading.enumerate() if each.name.startswith("agentkit-hf")] == []


async def test_a_prompt_beyond_the_window_is_a_token_limit(make_module: Callable[..., Any], tokenizer: Any):
    async with HFModel(make_module(), tokenizer=tokenizer, context_tokens=20) as model:
        trajectory = await ak.Agent(model).run("word " * 50)
    assert trajectory.exit_reason is ak.ExitReason.TOKEN_LIMIT


async def test_a_model_that_breaks_is_infrastructures_fault(make_module: Callable[..., Any], tokenizer: Any):
    module = make_module()

    def fail(*_: Any) -> None:
        raise RuntimeError("the device is gone")

    module.register_forward_pre_hook(fail)
    async with HFModel(module, tokenizer=tokenizer) as model:
        trajectory = await ak.Agent(model).run("Hi")
    assert (trajectory.exit_reason, trajectory.blame) == (ak.ExitReason.MODEL_ERROR, ak.Blame.INFRASTRUCTURE)
    assert "the device is gone" in (trajectory.error or "")
