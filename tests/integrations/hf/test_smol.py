"""SmolLM2-135M-Instruct: trained weights, real turns."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkit_hf import HFModel, hf_renderer

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.tokens import QWEN

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

QUESTION = "What is the capital of France?"
ANSWER = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # as llama-server and vLLM give it
GAP = 1e-3


@pytest.fixture(scope="module")
def module(smol: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smol).eval()


@pytest.fixture(scope="module")
def hf(smol: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smol)


class Quiz:
    """Three questions."""

    questions = ("And of Italy?", "And of Spain?\n")

    async def start(self, task: ak.Task) -> Sequence[ak.Message]:
        self.left = list(self.questions)
        return [ak.user(f"Answer in one short sentence. {QUESTION}")]

    async def step(self, action: ak.Action) -> ak.Observation:
        if not self.left:
            return ak.Observation("Thanks.", done=True)
        return ak.Observation(self.left.pop(0))

    async def close(self) -> None: ...


def test_the_family_is_found_and_the_template_grows(smol: Path):
    renderer = hf_renderer(str(smol))
    assert (renderer.family, renderer.rewrites, renderer.stop_ids) == (QWEN, (), frozenset({0, 2}))


def test_its_template_shows_no_tools_and_says_so(smol: Path, chatml: str):
    @ak.tool
    async def look() -> str:
        """Look."""
        return ""

    with pytest.raises(ak.ConfigError, match="does not show tools"):
        hf_renderer(str(smol)).prompt([ak.user("Hi")], (look.spec,))
    renderer = hf_renderer(str(smol), chat_template=chatml)
    assert "look" in renderer.tokenizer.decode(renderer.prompt([ak.user("Hi")], (look.spec,)))


async def test_the_capital_of_france(smol: Path):
    async with HFModel(str(smol), device="cpu") as model:
        trajectory = await ak.Agent(model, params={"temperature": 0}).run(QUESTION)
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.turns[0].action.text == "The capital of France is Paris."
    (chain,) = trajectory.chains
    assert chain.ids[trajectory.turns[0].start :].tolist() == ANSWER


def test_straight_from_the_gguf_file(smol_gguf: Path):
    async def run() -> ak.Trajectory:
        async with HFModel(str(smol_gguf), device="cpu") as model:
            return await ak.Agent(model, params={"temperature": 0}).run(QUESTION)

    trajectory = anyio.run(run)
    assert trajectory.turns[0].action.text == "The capital of France is Paris."


async def test_a_group_of_multi_turn_rollouts(
    module: Any, hf: Any, full_render: Callable[..., list[int]], rescore: Callable[..., list[float]], capsys: Any
):
    params = {"temperature": 0.7, "max_tokens": 24}
    async with HFModel(module, tokenizer=hf, device="cpu") as model:
        agent = ak.Agent(model, env=Quiz, params=params, budget=ak.Budget(max_tokens=2000))
        async with ak.Pool(agent, group_size=4) as pool:
            trajectories = await pool.run([ak.Task("quiz")])
    gap, sampled = 0.0, 0
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.FINISHED, trajectory.error
        assert len(trajectory.turns) == 3
        (chain,) = trajectory.chains
        messages = list(trajectory.prompt)
        for turn in trajectory.turns:
            messages += [ak.assistant(turn.action.text), *(each.message() for each in turn.observations)]
        assert chain.ids.tolist() == full_render(hf, trajectory, messages)[: len(chain)]
        expected = rescore(module, chain.ids.tolist(), 1, temperature=0.7)
        for i, mask in enumerate(chain.response_mask):
            if mask:
                gap = max(gap, abs(chain.logprobs[i] - expected[i - 1]))
                sampled += 1
    with capsys.disabled():
        print(f"\nlargest log-probability gap over {sampled} sampled tokens: {gap:.1e}")
    assert sampled > 40
    assert gap < GAP


async def test_cut_in_mid_generation(module: Any, hf: Any, rescore: Callable[..., list[float]]):
    slow = module.register_forward_pre_hook(lambda *_: time.sleep(0.1))  # so that no story ends before its time
    async with HFModel(module, tokenizer=hf, device="cpu") as model:
        agent = ak.Agent(model, budget=ak.Budget(generation_s=4.0))
        trajectory = await agent.run("Write a very long story about a lighthouse and the sea. Do not stop.")
        slow.remove()
        answer = await ak.Agent(model, params={"temperature": 0}).run(QUESTION)
    assert answer.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
    (chain,) = trajectory.chains
    start = trajectory.turns[0].start
    assert len(chain) - start > 0
    expected = rescore(module, chain.ids.tolist(), start)
    assert max(abs(a - b) for a, b in zip(chain.logprobs[start:], expected, strict=True)) < GAP


async def test_a_cancelled_pool_seals_what_was_sampled(
    module: Any, hf: Any, rescore: Callable[..., list[float]], tmp_path: Path
):
    async with HFModel(module, tokenizer=hf, device="cpu") as model:
        agent = ak.Agent(model)
        async with Journal.open(tmp_path) as journal:
            with anyio.move_on_after(5.0) as scope:
                async with ak.Pool(agent, sink=journal) as pool:
                    await pool.run([ak.Task(str(i), "Write a long story about the sea.") for i in range(3)])
            assert scope.cancelled_caught
    with JournalReader.open(tmp_path) as reader:
        trajectories = list(reader.trajectories())
    assert sorted(trajectory.task_id for trajectory in trajectories) == ["0", "1", "2"]
    for trajectory in trajectories:
        assert trajectory.exit_reason is ak.ExitReason.CANCELLED
        (chain,) = trajectory.chains
        start = trajectory.turns[0].start
        assert len(chain) - start > 0
        expected = rescore(module, chain.ids.tolist(), start)
        assert max(abs(a - b) for a, b in zip(chain.logprobs[start:], expected, strict=True)) < GAP
