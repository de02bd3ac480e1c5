"""A `transformers` model in this process: what a plain forward pass gives, whatever is kept, cut or changed."""

import math
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from agentkit_hf import HFModel, SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import ConfigError, ContextOverflow, ModelError, RolloutEnded
from agentkit.protocols import FinishReason, HasRenderer, TokenChunk, TokenModel, TokenRequest

pytestmark = pytest.mark.servers

GAP = 2e-4  # float32 and another order of sums; the logits differ by tens
PROMPT = [5, 300, 7, 41, 600, 13, 13, 2]


@pytest.fixture
def make(make_module: Callable[..., Any], tokenizer: Any) -> Callable[..., HFModel]:
    def model(module: Any = None, **options: Any) -> HFModel:
        return HFModel(make_module() if module is None else module, tokenizer=tokenizer, **options)

    return model


class Passes:
    """How many ids each forward pass of a module ran."""

    def __init__(self, module: Any) -> None:
        self.lengths: list[int] = []
        module.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, module: Any, args: Any, kwargs: Any) -> None:
        self.lengths.append(kwargs["input_ids"].shape[-1])


def close_to(found: list[float], expected: list[float]) -> bool:
    return max((abs(a - b) for a, b in zip(found, expected, strict=True)), default=0.0) < GAP


def test_it_has_the_shape(make: Callable[..., HFModel]):
    model = make()
    assert isinstance(model, TokenModel)
    assert isinstance(model, HasRenderer)


async def test_greedy_is_the_likeliest_token_of_a_plain_pass(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, torch: Any
):
    module, ids = make_module(), list(PROMPT)
    for _ in range(20):
        with torch.inference_mode():
            ids.append(int(module(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    async with make(module) as model:
        answer = await ask(model, PROMPT, max_tokens=20, temperature=0)
    assert answer.ids == ids[len(PROMPT) :]
    assert answer.logprobs == [0.0] * 20
    assert answer.finish.reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_p": 0.8},
        {"temperature": 4.0, "top_k": 5},
        {"temperature": 5.0, "top_p": 0.6, "top_k": 40},
    ],
    ids=str,
)
async def test_logprobs_are_those_of_the_distribution_sampled_from(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, rescore: Any, params: dict[str, Any]
):
    module = make_module()
    async with make(module, seed=1) as model:
        answer = await ask(model, PROMPT, max_tokens=40, **params)
    assert close_to(answer.logprobs, rescore(module, [*PROMPT, *answer.ids], len(PROMPT), **params))
    assert len(answer.ids) == 40
    assert min(answer.logprobs) < -0.1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=30),
    st.floats(0.05, 5.0),
    st.floats(0.05, 1.0),
    st.integers(0, 31),
)
def test_the_distribution_is_the_plain_one(
    torch: Any, plain: Any, logits: list[float], temperature: float, top_p: float, top_k: int
):
    from agentkit_hf._decoding import distribution

    logits = [round(each, 1) for each in logits]  # ties, and no sums within a rounding of top_p
    top_p = round(top_p, 2) + 0.003
    params = SamplingParams(temperature=temperature, top_p=min(top_p, 1.0), top_k=top_k)
    found = distribution(torch, torch.tensor(logits, dtype=torch.float64), params).tolist()
    expected = plain(logits, temperature, params.top_p, top_k)
    assert all(a == b or math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("temperature", [1e-6, 1e-38, 5e-324])
def test_the_coldest_temperature_draws_the_likeliest(torch: Any, temperature: float):
    from agentkit_hf._decoding import Draw

    draw = Draw(torch, SamplingParams(temperature=temperature), 0, torch.device("cpu"))
    assert draw(torch.tensor([1.0, 30.0, -2.0])) == (1, 0.0)


def test_tokens_are_drawn_as_often_as_they_should_be(torch: Any):
    from agentkit_hf._decoding import Draw

    draw = Draw(torch, SamplingParams(), 7, torch.device("cpu"))
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    counts = [0] * 4
    for _ in range(4000):
        counts[draw(logits)[0]] += 1
    for count, share in zip(counts, (0.5, 0.3, 0.15, 0.05), strict=True):
        assert abs(count - 4000 * share) < 5 * math.sqrt(4000 * share * (1 - share))


async def test_a_stop_id_ends_the_turn_and_is_kept(make: Callable[..., HFModel], ask: Any):
    async with make() as model:
        free = await ask(model, PROMPT, max_tokens=10, temperature=0)
        cut = free.ids[4]
        answer = await ask(model, PROMPT, max_tokens=10, temperature=0, stop_ids=frozenset({cut}))
    assert answer.ids == free.ids[: free.ids.index(cut) + 1]
    assert answer.finish.reason is FinishReason.STOP


async def test_a_later_turn_runs_only_what_is_new(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, rescore: Any
):
    module = make_module()
    passes = Passes(module)
    async with make(module) as model:
        chain = list(PROMPT)
        for turn in range(4):
            passes.lengths.clear()
            start, new = len(chain), (len(PROMPT) if turn == 0 else 3)
            answer = await ask(model, chain, max_tokens=6, new_ids=new, seed=turn)
            # the last sampled id of the turn before has not been run yet
            assert passes.lengths == [len(PROMPT) if turn == 0 else 4, 1, 1, 1, 1, 1]
            chain += answer.ids
            assert close_to(answer.logprobs, rescore(module, chain, start))
            chain += [10 + turn, 20, 30]


async def test_long_prompts_are_run_in_pieces_with_the_same_result(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any
):
    prompt, module = [(i * 37) % 640 for i in range(100)], make_module()
    passes = Passes(module)
    async with make(module, prefill_tokens=32) as model:
        pieces = await ask(model, prompt, seed=1)
    assert passes.lengths[:5] == [32, 32, 32, 4, 1]
    async with make(prefill_tokens=512) as model:
        whole = await ask(model, prompt, seed=1)
    assert pieces.ids == whole.ids
    assert close_to(pieces.logprobs, whole.logprobs)


@pytest.mark.parametrize("layers", ["full", "sliding"])
async def test_kept_caches_change_nothing(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, layers: str
):
    """Conversations that grow, fork, shrink and change places, against a model that keeps nothing."""
    import random

    dice = random.Random(3)
    changes: dict[str, Any] = {}
    if layers == "sliding":  # a cache that forgets: it can go on, but not back
        changes = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
        assert make_module(**changes).config.layer_types == ["full_attention", "sliding_attention"]
    chains: dict[str, list[int]] = {name: list(PROMPT) for name in "abc"}
    async with (
        make(make_module(**changes), kept_caches=2) as keeping,
        make(make_module(**changes), kept_caches=0) as plain,
    ):
        for step in range(40):
            name = dice.choice("abc")
            chain = chains[name]
            move = dice.random()
            if move < 0.2:
                del chain[dice.randrange(4, len(chain)) :]
            elif move < 0.3:
                chain[dice.randrange(len(chain))] = dice.randrange(640)
            elif move < 0.4:
                chains[name] = chain = list(chains[dice.choice("abc")])
            else:
                chain += [dice.randrange(640) for _ in range(dice.randrange(1, 4))]
            found = await ask(keeping, chain, request_id=name, seed=step, max_tokens=5)
            expected = await ask(plain, chain, request_id=name, seed=step, max_tokens=5)
            assert found.ids == expected.ids, f"step {step}"
            assert close_to(found.logprobs, expected.logprobs)
            chain += found.ids
            del chain[60:]


async def test_at_most_so_many_caches_are_kept(make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any):
    module = make_module()
    passes = Passes(module)
    async with make(module, kept_caches=2) as model:
        for name in ("a", "b", "c"):
            await ask(model, PROMPT, request_id=name, max_tokens=1)
        passes.lengths.clear()
        await ask(model, [*PROMPT, 1], request_id="b", max_tokens=1)
        await ask(model, [*PROMPT, 1], request_id="a", max_tokens=1)
    assert passes.lengths == [1, len(PROMPT) + 1]


async def test_a_cut_generation_keeps_its_tokens_and_its_cache(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, rescore: Any, new_answer: Any
):
    module = make_module()
    async with make(module) as model:
        answer = new_answer()
        with anyio.CancelScope() as scope:

            def stop_at_five(chunk: TokenChunk) -> None:
                if len(answer.ids) >= 5:
                    scope.cancel()

            await ask(model, PROMPT, max_tokens=400, answer=answer, emit=stop_at_five)
        assert scope.cancelled_caught
        assert 5 <= len(answer.ids) < 400
        assert len(answer.logprobs) == len(answer.ids)
        chain = [*PROMPT, *answer.ids, 9, 9]  # the model may have gone a token further meanwhile
        more = await ask(model, chain, new_ids=2)
        assert close_to(more.logprobs, rescore(module, [*chain, *more.ids], len(chain)))


async def test_a_deadline_in_mid_generation_keeps_what_was_sampled(
    make: Callable[..., HFModel], ask: Any, new_answer: Any
):
    async with make(make_slow(0.02)) as model:
        answer = new_answer()
        with anyio.move_on_after(1.0) as scope:
            await ask(model, PROMPT, max_tokens=400, answer=answer)
        assert scope.cancelled_caught
        assert 0 < len(answer.ids) < 60
        assert (await ask(model, PROMPT, max_tokens=2)).finish.reason is FinishReason.LENGTH


def make_slow(step_s: float) -> Any:
    """A module whose passes take a while."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=640, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    module = Qwen2ForCausalLM(config).eval()
    module.register_forward_pre_hook(lambda *_: time.sleep(step_s))
    return module


async def test_an_emit_that_refuses_ends_the_work(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any
):
    module = make_module()
    passes = Passes(module)

    def refuse(chunk: TokenChunk) -> None:
        raise RolloutEnded("over")

    async with make(module) as model:
        with pytest.raises(RolloutEnded):
            await ask(model, PROMPT, max_tokens=400, emit=refuse)
        await ask(model, PROMPT, max_tokens=2, request_id="next")
    assert len(passes.lengths) < 200


async def test_requests_take_turns_and_a_short_one_overtakes(make: Callable[..., HFModel], ask: Any):
    async with make(make_slow(0.005)) as model:
        ended: list[str] = []

        async def one(name: str, max_tokens: int) -> None:
            await ask(model, PROMPT, request_id=name, max_tokens=max_tokens)
            ended.append(name)

        async with anyio.create_task_group() as group:
            for name, max_tokens in (("long", 150), ("middle", 20), ("short", 3)):
                group.start_soon(one, name, max_tokens)
    assert ended == ["short", "middle", "long"]


async def test_with_one_at_a_time_they_end_as_they_came(make: Callable[..., HFModel], ask: Any):
    async with make(interleave=1) as model:
        ended: list[int] = []

        async def one(number: int) -> None:
            await ask(model, PROMPT, request_id=str(number), max_tokens=20 - number)
            ended.append(number)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(one, number)
                await anyio.sleep(0.005)
    assert ended == list(range(8))


async def test_concurrent_requests_get_what_each_would_get_alone(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any
):
    prompts = {str(i): [*PROMPT, i, 2 * i] for i in range(20)}
    answers: dict[str, Any] = {}
    async with make() as model:

        async def one(name: str) -> None:
            answers[name] = await ask(model, prompts[name], request_id=name, seed=int(name))

        async with anyio.create_task_group() as group:
            for name in prompts:
                group.start_soon(one, name)
    async with make() as model:
        for name, prompt in prompts.items():
            alone = await ask(model, prompt, request_id=name, seed=int(name))
            assert answers[name].ids == alone.ids
            assert answers[name].logprobs == alone.logprobs


async def test_seeds(make: Callable[..., HFModel], ask: Any):
    async with make(seed=5) as one, make(seed=5) as other, make(seed=6) as third:
        streams = [[(await ask(model, PROMPT)).ids for _ in range(3)] for model in (one, other, third)]
        assert streams[0] == streams[1] != streams[2]
        assert len({tuple(ids) for ids in streams[0]}) == 3
        assert (await ask(one, PROMPT, seed=1)).ids == (await ask(third, PROMPT, seed=1)).ids
    async with make() as unseeded:
        assert (await ask(unseeded, PROMPT)).ids != (await ask(unseeded, PROMPT)).ids


async def test_overflow_and_the_edge_of_the_window(make: Callable[..., HFModel], ask: Any):
    prompt = [i % 640 for i in range(510)]
    async with make() as model:
        answer = await ask(model, prompt, max_tokens=50)
        assert (len(answer.ids), answer.finish.reason) == (2, FinishReason.LENGTH)
        for over in ([*prompt, 1, 2], [*prompt, 1, 2, 3]):
            with pytest.raises(ContextOverflow, match=f"{len(over)} ids leaves no room.*window 512"):
                await ask(model, over)
        with pytest.raises(ContextOverflow, match="max_tokens is 0"):
            await ask(model, PROMPT, max_tokens=0)
    async with make(context_tokens=10) as model:
        assert len((await ask(model, PROMPT)).ids) == 2


async def test_params_may_narrow_the_room(make: Callable[..., HFModel]):
    from array import array

    from agentkit.protocols import TokenRequest

    async with make() as model:
        for asked, expected in ((3, 3), (30, 12)):
            chunks: list[TokenChunk] = []
            request = TokenRequest("r", array("i", PROMPT), 8, 12, frozenset(), math.inf, {"max_tokens": asked})
            await model.sample_tokens(request, chunks.append)
            assert sum(len(chunk.token_ids) for chunk in chunks) == expected


async def test_broken_weights_are_a_model_error_and_lose_nothing(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, torch: Any, new_answer: Any
):
    module, answer = make_module(), new_answer()

    def break_it(chunk: TokenChunk) -> None:
        if len(answer.ids) == 3:
            with torch.no_grad():
                module.lm_head.weight.fill_(math.nan)

    module.lm_head.weight = torch.nn.Parameter(module.lm_head.weight.clone())  # not the embeddings' any more
    slow = module.register_forward_pre_hook(lambda *_: time.sleep(0.02))
    async with make(module) as model:
        with pytest.raises(ModelError, match="highest logit is nan") as caught:
            await ask(model, PROMPT, answer=answer, emit=break_it)
        assert not caught.value.retryable
        assert len(answer.ids) >= 3
    slow.remove()


async def test_ids_the_model_does_not_know_are_refused(make: Callable[..., HFModel], ask: Any):
    async with make() as model:
        for bad in (640, -1):
            with pytest.raises(ModelError, match="the model knows 0 to 639"):
                await ask(model, [*PROMPT, bad])
        with pytest.raises(ModelError, match="prompt is empty"):
            await ask(model, [])
        assert (await ask(model, PROMPT)).ids


async def test_a_pass_that_fails_is_a_model_error_and_its_cache_is_dropped(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, rescore: Any, torch: Any
):
    module = make_module()
    left, error = [7], [RuntimeError("no such kernel")]

    def fail_once(*_: Any) -> None:  # in the second layer: the first has taken the ids into its cache by then
        left[0] -= 1
        if left[0] == 0:
            raise error[0]

    module.model.layers[1].register_forward_pre_hook(fail_once)
    async with make(module) as model:
        with pytest.raises(ModelError, match="RuntimeError: no such kernel") as caught:
            await ask(model, PROMPT)
        assert not caught.value.retryable
        answer = await ask(model, PROMPT, new_ids=1)
        assert close_to(answer.logprobs, rescore(module, [*PROMPT, *answer.ids], len(PROMPT)))
        left[0], error[0] = 3, torch.OutOfMemoryError("CUDA out of memory")
        with pytest.raises(ModelError, match="no memory") as caught:
            await ask(model, PROMPT)
        assert caught.value.retryable
        answer = await ask(model, PROMPT)
        assert close_to(answer.logprobs, rescore(module, [*PROMPT, *answer.ids], len(PROMPT)))


async def test_new_weights_are_used_from_the_next_token_on(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, rescore: Any, torch: Any, new_answer: Any
):
    module, changed, version = make_module(), make_module(), [0]

    def change(one: Any) -> str:
        with torch.no_grad():
            for weights in one.parameters():
                weights.mul_(0.8)
        version[0] += 1
        return "changed"

    change(changed)
    version[0] = 0
    answer, seen = new_answer(), anyio.Event()
    async with make(module, policy_version=lambda: version[0]) as model:

        async def generate() -> None:
            await ask(model, PROMPT, max_tokens=300, answer=answer, emit=lambda _: seen.set())

        async with anyio.create_task_group() as group:
            group.start_soon(generate)
            await seen.wait()
            assert await model.update(change) == "changed"
        first = answer.versions.count(0)
        assert 0 < first < 300
        assert answer.versions == [0] * first + [1] * (300 - first)
        chain = [*PROMPT, *answer.ids]
        old, new = make_module(), changed
        expected = rescore(old, chain, len(PROMPT))[:first] + rescore(new, chain, len(PROMPT))[first:]
        assert close_to(answer.logprobs, expected)
        more = await ask(model, [*chain, 4], new_ids=1)  # and what was kept is of the new weights
        assert close_to(more.logprobs, rescore(new, [*chain, 4, *more.ids], len(chain) + 1))


async def test_a_version_that_moves_drops_what_was_kept(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any
):
    module, version = make_module(), [3]
    passes = Passes(module)
    async with make(module, policy_version=lambda: version[0]) as model:
        assert (await ask(model, PROMPT, max_tokens=1)).versions == [3]
        version[0] = 4
        passes.lengths.clear()
        assert (await ask(model, [*PROMPT, 1], max_tokens=1)).versions == [4]
        assert passes.lengths == [len(PROMPT) + 1]
    async with make(policy_version=9) as model:
        assert (await ask(model, PROMPT, max_tokens=2)).versions == [9, 9]


async def test_dropout_is_off_while_sampling(make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any):
    module = make_module(attention_dropout=0.9)
    async with make(module) as model:
        calm = await ask(model, PROMPT, temperature=0)
        await model.update(lambda one: one.train())
        assert (await ask(model, PROMPT, temperature=0)).ids == calm.ids


async def test_gradients_flow_in_an_update(
    make: Callable[..., HFModel], make_module: Callable[..., Any], ask: Any, torch: Any
):
    module = make_module()
    async with make(module) as model:
        answer = await ask(model, PROMPT, max_tokens=8)

        def step(one: Any) -> float:
            ids = torch.tensor([[*PROMPT, *answer.ids]])
            loss = one(input_ids=ids, labels=ids).loss
            loss.backward()
            # so small a step goes downhill whatever was sampled; a large one may step over the valley
            torch.optim.SGD(one.parameters(), lr=1e-3).step()
            one.zero_grad()
            return float(loss.detach())

        assert await model.update(step) > await model.update(step)


async def test_leaving_ends_the_thread_and_what_is_under_way(make: Callable[..., HFModel], ask: Any):
    failures: list[str] = []
    model = make(make_slow(0.01))
    async with anyio.create_task_group() as group:
        async with model:
            begun = anyio.Event()

            async def one() -> None:
                with pytest.raises(ModelError) as caught:
                    await ask(model, PROMPT, max_tokens=400, emit=lambda _: begun.set())
                failures.append(str(caught.value))

            group.start_soon(one)
            await begun.wait()
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("agentkit-hf")] == []
    assert failures == ["agentkit-hf:Qwen2ForCausalLM was closed"]
    with pytest.raises(ConfigError, match="not open: use it inside"):
        await ask(model, PROMPT)
    with pytest.raises(ConfigError, match="not open"):
        await model.update(lambda one: None)
    async with model:
        assert (await ask(model, PROMPT, max_tokens=2)).ids
        with pytest.raises(ConfigError, match="open already"):
            await model.__aenter__()


async def test_a_native_cancel_twice_keeps_what_was_sampled(
    make: Callable[..., HFModel], ask: Any, new_answer: Any, anyio_backend_name: str
):
    if anyio_backend_name != "asyncio":
        pytest.skip("trio has no native cancel")
    import asyncio

    answer, begun = new_answer(), asyncio.Event()
    async with make(make_slow(0.01)) as model:
        task = asyncio.create_task(ask(model, PROMPT, max_tokens=400, answer=answer, emit=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert answer.ids
        assert (await ask(model, PROMPT, max_tokens=2)).ids


async def test_a_model_is_loaded_from_a_folder_and_let_go(
    make_module: Callable[..., Any], tokenizer: Any, ask: Any, tmp_path: Path
):
    make_module().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = HFModel(str(tmp_path), device="cpu", dtype="float32")
    async with model, HFModel(make_module(), tokenizer=tokenizer) as same:
        for seed in range(3):
            assert (await ask(model, PROMPT, seed=seed)).ids == (await ask(same, PROMPT, seed=seed)).ids
        assert model.renderer.stop_ids == same.renderer.stop_ids == {0, 2}
    assert model._decoder is None


async def test_what_cannot_be_loaded_is_one_error(tokenizer: Any, tmp_path: Path, make_module: Callable[..., Any]):
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"model '.*' cannot be read"):
        async with HFModel(str(tmp_path)):
            pass
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("agentkit-hf")] == []
    with pytest.raises(ConfigError, match="device must be 'auto' or"):
        HFModel(str(tmp_path), device="nowhere")
    with pytest.raises(ConfigError, match="dtype must be 'auto' or"):
        HFModel(str(tmp_path), dtype="manual_seed")
    with pytest.raises(ConfigError, match=r"needs tokenizer=\.\.\. or renderer=..."):
        HFModel(make_module())
    with pytest.raises(ConfigError, match="cast it yourself"):
        HFModel(make_module(), tokenizer=tokenizer, dtype="float32")


async def test_nothing_is_pushed_after_a_push_that_failed(make: Callable[..., HFModel]):
    """The rest would stand in the chain where the lost tokens belong."""
    pushed = []

    def emit(chunk: TokenChunk) -> None:
        pushed.append(list(chunk.token_ids))
        if len(pushed) == 2:
            time.sleep(0.3)  # more is sampled meanwhile
            raise ValueError("no")

    async with make() as model:
        request = TokenRequest("r", array("i", PROMPT), len(PROMPT), 50, frozenset(), float("inf"))
        with pytest.raises(ValueError, match="no"):
            await model.sample_tokens(request, emit)
    assert len(pushed) == 2


PROGRAM = """
import anyio, sys
from array import array
from transformers import Qwen2Config, Qwen2ForCausalLM
from agentkit.protocols import TokenRequest
from agentkit.tokens import byte_chatml
from agentkit_hf import HFModel
config = Qwen2Config(vocab_size=2000, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=2, max_position_embeddings=100000)
count = 0
async def main():
    model = HFModel(Qwen2ForCausalLM(config), renderer=byte_chatml())
    await model.__aenter__()
    request = TokenRequest("r", array("i", [1, 2, 3]), 3, 90000, frozenset(), float("inf"))
    def emit(chunk):
        global count
        count += len(chunk.token_ids)
        if count > 20:
            print("leaving", flush=True)
            sys.exit(7)
    await model.sample_tokens(request, emit)
try:
    anyio.run(main, backend=sys.argv[1])
except BaseException as error:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    raise error from None
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_process_that_ends_in_mid_generation_ends_cleanly(backend: str):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, backend], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr[-500:]) == (7, "leaving\n", "")
