"""The contract of a token-level model, on a real engine."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkit_vllm import VLLMModel
from attrs import define, field

from agentkit import ConfigError, ContextOverflow, ModelError, user
from agentkit.protocols import Finish, FinishReason, TokenChunk, TokenRequest
from agentkit.tokens import TemplateRenderer
from agentkit.tokens.text import until_stop

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore"),  # vLLM and torch warn at import
]

ENDLESS = {"ignore_eos": True, "min_tokens": 1900}
"""Some seconds of sampling, whatever the policy would rather do."""


@define
class Sampled:
    """What one generation pushed."""

    ids: list[int] = field(factory=list)
    logprobs: list[float] = field(factory=list)
    chunks: int = 0
    finish: Finish | None = None

    def emit(self, chunk: TokenChunk) -> None:
        assert chunk.policy_version == 7
        assert len(chunk.token_ids) == len(chunk.logprobs) > 0
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.chunks += 1


@pytest.fixture
def prompt(tiny_renderer: TemplateRenderer) -> list[int]:
    return list(tiny_renderer.prompt([user("hi")], ()))


async def sample(
    model: VLLMModel,
    prompt: Sequence[int],
    *,
    max_tokens: int = 20,
    stop_ids: frozenset[int] = frozenset({0, 2}),
    request_id: str = "r",
    into: Sampled | None = None,
    **params: Any,
) -> Sampled:
    sampled = into or Sampled()
    request = TokenRequest(request_id, prompt, len(prompt), max_tokens, stop_ids, anyio.current_time() + 60, params)
    sampled.finish = await model.sample_tokens(request, sampled.emit)
    return sampled


async def test_tokens_come_one_after_another_with_their_logprobs(model: VLLMModel, prompt: list[int]):
    sampled = await sample(model, prompt, ignore_eos=True, stop_ids=frozenset())
    assert sampled.finish == Finish(FinishReason.LENGTH)
    assert len(sampled.ids) == 20
    assert sampled.chunks > 1
    assert all(value < 0 for value in sampled.logprobs)


async def test_the_end_of_turn_is_among_the_ids(model: VLLMModel, prompt: list[int]):
    sampled = await sample(model, prompt, logit_bias={"2": 100})
    assert (sampled.ids, sampled.finish) == ([2], Finish(FinishReason.STOP))
    assert sampled.logprobs == pytest.approx([0.0], abs=1e-6)  # of the biased distribution, in which it is certain


async def test_any_stop_id_ends_a_turn_and_is_kept(model: VLLMModel, prompt: list[int]):
    sampled = await sample(model, prompt, logit_bias={70: 100}, stop_ids=frozenset({70}))
    assert (sampled.ids, sampled.finish) == ([70], Finish(FinishReason.STOP))


async def test_a_stop_string_inside_a_token_leaves_the_token_whole(
    model: VLLMModel, prompt: list[int], tiny_renderer: TemplateRenderer
):
    token_id = next(each for each in range(300, 2000) if len(tiny_renderer.decode([each]).strip()) > 4)
    text = tiny_renderer.decode([token_id]).strip()
    sampled = await sample(model, prompt, allowed_token_ids=[token_id], stop=[text[1:3]])
    assert (sampled.ids, sampled.finish) == ([token_id], Finish(FinishReason.STOP, stop_string=text[1:3]))
    assert len(sampled.logprobs) == 1


async def test_max_tokens_is_cut_to_the_window(model: VLLMModel):
    sampled = await sample(model, [300] * 2044, max_tokens=100, ignore_eos=True, stop_ids=frozenset())
    assert (len(sampled.ids), sampled.finish) == (4, Finish(FinishReason.LENGTH))


@pytest.mark.parametrize("min_tokens", [0, 1, 7])
async def test_an_action_ends_where_the_engine_ends_its_text(
    model: VLLMModel, prompt: list[int], tiny_renderer: TemplateRenderer, min_tokens: int
):
    from vllm import SamplingParams

    plain = [each for each in range(300, 2000) if tiny_renderer.decode([each]).isascii()]
    ended = 0
    for seed in range(12):
        params = {"seed": seed, "min_tokens": min_tokens, "stop": ["e", "s t"], "allowed_token_ids": plain}
        sampled = await sample(model, prompt, max_tokens=40, stop_ids=frozenset(), **params)
        asked = SamplingParams(max_tokens=40, include_stop_str_in_output=True, **params)
        async for output in model.engine.generate({"prompt_token_ids": prompt}, asked, f"text-{min_tokens}-{seed}"):
            (said,) = output.outputs
        assert (sampled.ids, sampled.finish.stop_string) == (list(said.token_ids), said.stop_reason)
        if said.stop_reason is None:
            continue
        ended += tiny_renderer.decode(sampled.ids) != said.text  # in the middle of a token
        settled = len(tiny_renderer.decode(sampled.ids[: sampled.finish.min_tokens]))
        assert until_stop(tiny_renderer.decode(sampled.ids), said.stop_reason, settled=settled) == said.text
    assert ended > 3


@pytest.mark.parametrize("name", ["n", "best_of", "prompt_logprobs", "echo"])
async def test_what_would_mix_tokens_is_refused_before_it_reaches_the_engine(
    model: VLLMModel, prompt: list[int], name: str
):
    with pytest.raises(ConfigError, match=rf"params\.{name} is set by the model itself"):
        await sample(model, prompt, **{name: 2})


@pytest.mark.parametrize("length", [2048, 2049, 5000])
async def test_a_prompt_that_fills_the_window_overflows(model: VLLMModel, length: int):
    with pytest.raises(ContextOverflow, match=f"{length} tokens, of a window of 2048"):
        await sample(model, [300] * length)


async def test_the_same_seed_samples_the_same(model: VLLMModel, prompt: list[int]):
    first, second, other = [await sample(model, prompt, seed=seed, ignore_eos=True) for seed in (1, 1, 2)]
    assert first.ids == second.ids != other.ids


@pytest.mark.parametrize("temperature", [1.0, 0.5], ids=["as is", "sharpened"])
async def test_logprobs_are_of_the_distribution_sampled_from(
    model: VLLMModel, prompt: list[int], tiny_model_folder: Path, temperature: float
):
    import torch
    from transformers import AutoModelForCausalLM

    sampled = await sample(model, prompt, max_tokens=64, temperature=temperature, ignore_eos=True, stop_ids=frozenset())
    oracle = AutoModelForCausalLM.from_pretrained(tiny_model_folder, dtype=torch.float32)
    chain = torch.tensor([[*prompt, *sampled.ids]])
    with torch.no_grad():
        scores = torch.log_softmax(oracle(chain).logits[0, len(prompt) - 1 : -1] / temperature, -1)
    expected = scores.gather(1, chain[0, len(prompt) :, None])[:, 0].tolist()
    assert sampled.logprobs == pytest.approx(expected, abs=2e-3)


async def test_structured_outputs_hold_the_policy_to_a_grammar(
    model: VLLMModel, prompt: list[int], tiny_renderer: TemplateRenderer
):
    sampled = await sample(model, prompt, structured_outputs={"regex": "(yes|no), [0-9]{3}"})
    text = tiny_renderer.decode(sampled.ids)
    assert text[: text.index(",")] in ("yes", "no")
    assert text[-3:].isdigit()


@pytest.mark.parametrize("after_s", [0.0, 0.001], ids=["at once", "while it is added"])
async def test_a_scope_cancelled_before_anything_is_sampled_frees_the_engine(
    model: VLLMModel, prompt: list[int], idle: Callable[[], Awaitable[None]], after_s: float
):
    with anyio.move_on_after(after_s) as scope:
        await sample(model, prompt, max_tokens=2000, stop_ids=frozenset(), **ENDLESS)
    assert scope.cancelled_caught
    await idle()


async def test_a_scope_cancelled_in_mid_generation_frees_the_engine(
    model: VLLMModel, prompt: list[int], idle: Callable[[], Awaitable[None]]
):
    @define
    class Leaving(Sampled):
        def emit(self, chunk: TokenChunk) -> None:
            Sampled.emit(self, chunk)
            if self.chunks == 5:
                scope.cancel()

    sampled = Leaving()
    with anyio.CancelScope() as scope:
        await sample(model, prompt, max_tokens=2000, into=sampled, stop_ids=frozenset(), **ENDLESS)
    assert scope.cancelled_caught
    seen = len(sampled.ids)
    await idle()
    assert 5 <= len(sampled.ids) == seen < 1900


async def test_two_native_cancels_free_the_engine(
    model: VLLMModel, prompt: list[int], idle: Callable[[], Awaitable[None]]
):
    sampled = Sampled()
    task = asyncio.create_task(sample(model, prompt, max_tokens=2000, into=sampled, stop_ids=frozenset(), **ENDLESS))
    while not sampled.ids:
        await anyio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await idle()
    assert len(sampled.ids) < 1900


async def test_sixty_four_at_once_half_of_them_left(
    model: VLLMModel, prompt: list[int], idle: Callable[[], Awaitable[None]]
):
    all_sampled = [Sampled() for _ in range(64)]
    leaving = anyio.Event()

    async def one(number: int, into: Sampled) -> None:
        asked = {"into": into, "request_id": f"t{number // 4}", "stop_ids": frozenset[int]()}  # four at once by one id
        if number % 2:
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: sample(model, prompt, max_tokens=2000, **asked, **ENDLESS))
                await leaving.wait()
                group.cancel_scope.cancel()
        else:
            await sample(model, prompt, max_tokens=30, ignore_eos=True, **asked)
            leaving.set()  # the short ones run beside the long ones, so those have begun

    async with anyio.create_task_group() as group:
        for number, into in enumerate(all_sampled):
            group.start_soon(one, number, into)
    await idle()
    for number, sampled in enumerate(all_sampled):
        if number % 2:
            assert sampled.finish is None
            assert 0 < len(sampled.ids) < 1900
        else:
            assert (len(sampled.ids), sampled.finish) == (30, Finish(FinishReason.LENGTH))
    assert len({tuple(sampled.ids) for sampled in all_sampled[::2]}) == 32


async def test_a_token_id_that_is_none_is_refused_and_harms_nobody(model: VLLMModel, prompt: list[int]):
    with pytest.raises(ModelError, match=r"vocab") as caught:
        await sample(model, [300, 999_999])
    assert not caught.value.retryable
    assert (await sample(model, prompt)).ids


async def test_params_are_checked_against_this_vllm(model: VLLMModel, prompt: list[int]):
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        await sample(model, prompt, temprature=1)
    with pytest.raises(ConfigError, match="temperature"):
        await sample(model, prompt, temperature=-1.0)
    with pytest.raises(ConfigError, match="structured"):
        await sample(model, prompt, structured_outputs={"regex": "a", "choice": ["b"]})


async def test_it_is_entered_once(model: VLLMModel):
    with pytest.raises(ConfigError, match="entered already"):
        async with model:
            pass
