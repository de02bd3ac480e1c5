"""Rollouts that see: screenshots of tools in a chain, and before the model, turn by turn."""

from array import array
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from agentkit_hf import ProcessorRenderer, processor_renderer
from attrs import define, field
from PIL import Image

import agentkit as ak
from agentkit import ExitReason, Task
from agentkit.journal import Journal, JournalReader
from agentkit.models import ReplayModel, ScriptedModel
from agentkit.parsing import HermesParser
from agentkit.protocols import (
    EmitTokens,
    Finish,
    Medium,
    Observation,
    Placed,
    SpanKind,
    TokenChunk,
    TokenRequest,
    image,
)
from agentkit.tokens import collapse, shown_in

pytestmark = pytest.mark.filterwarnings("ignore:.*PyTorch was not found.*")

CLICK = '<tool_call>\n{"name": "click", "arguments": {"x": 1}}\n</tool_call>'
PAD = "<|image_pad|>"


def picture(seed: int) -> Medium:
    held = BytesIO()
    Image.new("RGB", (60 + 28 * seed, 90), (seed * 40, 9, 9)).save(held, format="PNG")
    return image(held.getvalue())


SHOTS = [picture(seed) for seed in range(5)]


@define
class Scripted:
    """Samples the given texts, one a turn, and keeps what it was shown."""

    tokenizer: Any
    texts: list[str]
    takes_media: bool = True
    asked: list[tuple[list[int], Sequence[Placed]]] = field(factory=list)

    async def sample_tokens(self, request: TokenRequest, emit: EmitTokens, /) -> Finish:
        self.asked.append((list(request.prompt_ids), request.media))
        ids = [*self.tokenizer(self.texts[len(self.asked) - 1])["input_ids"], self.tokenizer.eos_token_id]
        assert ids[-1] in request.stop_ids
        emit(TokenChunk(ids, [-0.5] * len(ids)))
        return Finish()


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of: Callable[[str], Any]) -> Any:
    return tokenizer_of("qwen3")


@pytest.fixture(scope="module")
def renderer(vision_processor: Any) -> ProcessorRenderer:
    return processor_renderer(vision_processor)


def clicking() -> ak.Tool:
    shots = iter(SHOTS[1:])

    @ak.tool
    async def click(x: int) -> Observation:
        """Click."""
        return Observation.of("Now:", next(shots))

    return click


def agent(model: Any, renderer: Any, **kwargs: Any) -> ak.Agent:
    return ak.Agent(model, renderer=renderer, parser=HermesParser(), tools=[clicking], **kwargs)


TASK = Task("t", [ak.user("Click until it is dark.", SHOTS[0])])


async def test_model_is_shown_all_of_the_chain_and_each_where_it_stands(tokenizer, renderer, vision_processor) -> None:
    model = Scripted(tokenizer, [CLICK, CLICK, "dark"])
    trajectory = await agent(model, renderer).run(TASK)
    assert trajectory.exit_reason is ExitReason.FINISHED, trajectory.error
    (chain,) = trajectory.chains
    pad = tokenizer.convert_tokens_to_ids(PAD)
    for turn, (prompt, media) in enumerate(model.asked):
        assert [placed.medium for placed in media] == SHOTS[: turn + 1]
        assert sum(placed.stop - placed.start for placed in media) == prompt.count(pad)
        assert all(set(prompt[placed.start : placed.stop]) == {pad} for placed in media)
        assert collapse(prompt, media).count(pad) == turn + 1
        assert list(chain.token_ids[: len(prompt)]) == prompt
    for span in chain.spans:
        if span.kind is SpanKind.SAMPLED:
            assert pad not in chain.token_ids[span.start : span.stop]
    # what the processor gives for the same conversation, all at once
    said: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": TASK.messages[0].content}, shown(SHOTS[0])]}
    ]
    for seen in SHOTS[1:3]:
        call = {"type": "function", "function": {"name": "click", "arguments": {"x": 1}}}
        said.append({"role": "assistant", "content": "", "tool_calls": [call]})
        said.append({"role": "tool", "content": [{"type": "text", "text": "Now:"}, shown(seen)]})
    spec = clicking().spec
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    oracle = vision_processor.apply_chat_template(
        said, tools=[{"type": "function", "function": function}], add_generation_prompt=True, tokenize=True
    )
    assert model.asked[-1][0] == list(oracle[0])
    assert shown_in(trajectory, 0, renderer) == tuple(model.asked[-1][1])


def shown(medium: Medium) -> dict[str, Any]:
    return {"type": "image", "image": Image.open(BytesIO(medium.data))}


async def test_trajectory_with_images_is_readable_afterwards(tokenizer, renderer, tmp_path: Path) -> None:
    model = Scripted(tokenizer, [CLICK, "dark"])
    async with (
        Journal.open(tmp_path, writer="inline") as journal,
        ak.Pool(agent(model, renderer), sink=journal) as pool,
    ):
        made = [trajectory async for trajectory in pool.run([TASK])]
    with JournalReader.open(tmp_path) as reader:
        read = list(reader.trajectories())
    assert read == made
    (trajectory,) = read
    shown = shown_in(trajectory, 0, renderer)
    assert [placed.medium for placed in shown] == SHOTS[:2]
    features = renderer.features([placed.medium for placed in shown])
    assert features["image_grid_thw"].shape == (2, 3)


async def test_model_without_eyes_is_not_asked(tokenizer, renderer) -> None:
    model = Scripted(tokenizer, ["dark"], takes_media=False)
    trajectory = await agent(model, renderer).run(TASK)
    assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
    assert "Scripted takes no media, the conversation shows <image/png" in str(trajectory.error)
    assert model.asked == []


async def test_renderer_without_eyes_is_not_used(tokenizer, renderer) -> None:
    model = Scripted(tokenizer, ["dark"])
    trajectory = await agent(model, renderer.renderer.over(renderer.renderer.template)).run(TASK)
    assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
    assert "renderer shows no media" in str(trajectory.error)
    assert model.asked == []


@pytest.mark.parametrize("on_rewrite", ["error", "new_chain"])
async def test_policy_that_samples_a_place_for_media_never_misaligns_them(tokenizer, renderer, on_rewrite) -> None:
    model = Scripted(tokenizer, [f"{PAD}{CLICK}", "dark"])
    trajectory = await agent(model, renderer, on_rewrite=on_rewrite).run(TASK)
    pad = tokenizer.convert_tokens_to_ids(PAD)
    sampled = trajectory.chains[0].token_ids[trajectory.turns[0].start : trajectory.turns[0].stop]
    assert pad in sampled  # T2: verbatim
    if on_rewrite == "error":
        assert "stands for a medium" in str(trajectory.error)
        assert len(model.asked) == 1
    else:
        prompt, media = model.asked[1]
        assert [placed.medium for placed in media] == SHOTS[:2]
        assert shown_in(trajectory, 1, renderer) == tuple(media)
        assert prompt.count(pad) == sum(placed.stop - placed.start for placed in media)
        assert array("i", sampled) not in [array("i", prompt[at : at + len(sampled)]) for at in range(len(prompt))]


async def compacting(rollout: ak.Rollout) -> None:
    """Forgets all but the last screenshot after two turns, and goes on."""
    async for action in rollout:
        await rollout.act(action)
        if rollout.turns == 2:
            rollout.rewrite([ak.user("You clicked twice. The screen: ", SHOTS[2]), ak.user("Go on.")])


async def test_each_chain_of_a_rewritten_history_shows_its_own(tokenizer, renderer) -> None:
    model = Scripted(tokenizer, [CLICK, CLICK, CLICK, "dark"])
    trajectory = await agent(model, renderer, loop=compacting).run(TASK)
    assert trajectory.exit_reason is ExitReason.FINISHED, trajectory.error
    assert len(trajectory.chains) == 2
    of_first, of_second = ([placed.medium for placed in shown_in(trajectory, n, renderer)] for n in (0, 1))
    assert of_first == SHOTS[:2]
    assert of_second == [SHOTS[2], SHOTS[3]]
    assert shown_in(trajectory, 1, renderer) == tuple(model.asked[-1][1])


async def test_scripts_and_replays_run_agents_that_see(renderer) -> None:
    script = ScriptedModel([CLICK, "dark"], renderer=renderer, parser=HermesParser())
    first = await ak.Agent(script, tools=[clicking]).run(TASK)
    assert first.exit_reason is ExitReason.FINISHED, first.error
    assert [placed.medium for placed in shown_in(first, 0, renderer)] == SHOTS[:2]
    replay = ReplayModel(first, renderer=renderer, parser=HermesParser())
    again = await ak.Agent(replay, tools=[clicking]).run(TASK)
    assert again.chains == first.chains
