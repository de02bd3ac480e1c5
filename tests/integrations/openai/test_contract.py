"""What a token-level server must do with what the client asks, and the client with what it answers."""

import math
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
import anyio
import pytest
from agentkit_openai import CompletionsModel
from agentkit_openai.transport import Transport

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.protocols import Finish, FinishReason, TokenChunk, TokenRequest

pytestmark = pytest.mark.slow

IS_REAL = "AGENTKIT_SERVER_URL" in os.environ
EOS = 2
PROMPT = [5, 6, 7, 8]
FOREVER = {"ignore_eos": True}
TEXT = "hello world and more stuff 😀 é"


@pytest.fixture(params=["real"] if IS_REAL else ["vllm_0.32", "llamacpp_11434"])
async def server(request: pytest.FixtureRequest, make_server: Callable[[str], Awaitable[Any]]) -> Any:
    return await make_server(f"completions_{request.param}.jsonl")


@pytest.fixture
async def model(server: Any) -> AsyncIterator[CompletionsModel]:
    async with CompletionsModel(server.base_url, server.model) as opened:
        yield opened


class Sampled:
    """One generation: what was pushed, and how it ended."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.chunks = 0

    def emit(self, chunk: TokenChunk) -> None:
        assert len(chunk.token_ids) == len(chunk.logprobs) > 0
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs
        self.chunks += 1


async def sample(
    model: CompletionsModel,
    prompt: list[int] = PROMPT,
    *,
    max_tokens: int = 5,
    stop_ids: frozenset[int] = frozenset(),
    params: Mapping[str, Any] | None = None,
    request_id: str = "task-0",
    sampled: Sampled | None = None,
) -> tuple[Sampled, Finish]:
    sampled = sampled or Sampled()
    deadline = anyio.current_time() + 60
    request = TokenRequest(request_id, prompt, len(prompt), max_tokens, stop_ids, deadline, params or {})
    return sampled, await model.sample_tokens(request, sampled.emit)


def is_vllm(model: CompletionsModel) -> bool:
    return model.capabilities.dialect == "vllm"


def forced(model: CompletionsModel, text: str) -> dict[str, Any]:
    """Params under which nothing but `text` can be sampled, always in the same tokens."""
    if is_vllm(model):
        return {"structured_outputs": {"choice": [text]}, "temperature": 0}
    return {"grammar": f'root ::= "{text}"', "temperature": 0}


async def test_what_the_server_can_do_is_known(model: CompletionsModel) -> None:
    found = model.capabilities
    assert found.window is not None
    assert found.window > 100
    assert found.logprobs in ("raw", "processed")


async def test_each_sampled_id_comes_with_its_logprob_as_it_is_sampled(model: CompletionsModel) -> None:
    sampled, finish = await sample(model, max_tokens=8, params=FOREVER)
    assert finish == Finish(FinishReason.LENGTH)
    assert len(sampled.ids) == len(sampled.logprobs) == 8
    assert sampled.chunks > 1
    assert all(-50 < logprob <= 0 and math.isfinite(logprob) for logprob in sampled.logprobs)


async def test_the_stop_token_of_the_model_is_sampled_like_any_other(model: CompletionsModel) -> None:
    sampled, finish = await sample(model, stop_ids=frozenset({EOS}), params={"logit_bias": {str(EOS): 100}})
    assert finish == Finish(FinishReason.STOP)
    assert sampled.ids == [EOS]
    assert len(sampled.logprobs) == 1


async def test_a_stop_id_of_the_renderer_ends_the_turn_and_stays(model: CompletionsModel) -> None:
    sampled, finish = await sample(model, stop_ids=frozenset({EOS, 70}), params={"logit_bias": {"70": 100}})
    assert finish == Finish(FinishReason.STOP)
    assert sampled.ids == [70]
    assert len(sampled.logprobs) == 1


@pytest.mark.parametrize("stop", ["l", "orld", "world and mo", "no such thing"])
async def test_ids_are_kept_whole_where_a_stop_string_cuts_the_text(model: CompletionsModel, stop: str) -> None:
    text = TEXT if is_vllm(model) else "hello world and more stuff"
    whole, _ = await sample(model, max_tokens=60, params=forced(model, text))
    sampled, finish = await sample(model, max_tokens=60, params={**forced(model, text), "stop": [stop]})
    assert finish == Finish(FinishReason.STOP, stop_string=stop if stop in text else None)
    assert sampled.ids == whole.ids[: len(sampled.ids)]
    assert len(sampled.ids) == len(sampled.logprobs) > 0
    assert (len(sampled.ids) == len(whole.ids)) == (stop == "no such thing")


async def test_ids_inside_a_character_are_never_lost_silently(model: CompletionsModel) -> None:
    if is_vllm(model):
        sampled, _ = await sample(model, max_tokens=60, params=forced(model, "hi 😀😁"))
        assert sampled.ids
        assert sampled.ids[-1] == EOS
    else:  # it holds them back
        with pytest.raises(ModelError, match="not token-exact"):
            await sample(model, max_tokens=60, params=forced(model, "hi 😀😁"))


async def test_an_abort_by_the_server_keeps_what_was_sampled(server: Any, model: CompletionsModel) -> None:
    if not is_vllm(model):
        return  # llama.cpp has no such thing
    for _ in range(5):  # a busy machine may pause the server only after it has sampled all it was asked for
        finish, sampled = await paused_in_mid_generation(server.root_url, model, tokens=1500)
        if finish.reason is not FinishReason.LENGTH:
            break
    assert finish == Finish(FinishReason.ABORTED)
    assert 0 < len(sampled.ids) < 1500


async def paused_in_mid_generation(root_url: str, model: CompletionsModel, *, tokens: int) -> tuple[Finish, Sampled]:
    """How a generation ended whose server was told to abort all once the first token had come."""
    sampled, begun, ends = Sampled(), anyio.Event(), list[Finish]()

    def emit(chunk: TokenChunk) -> None:
        sampled.emit(chunk)
        begun.set()

    async def generate() -> None:
        request = TokenRequest(
            "aborted", PROMPT, len(PROMPT), tokens, frozenset(), anyio.current_time() + 60, {"ignore_eos": True}
        )
        ends.append(await model.sample_tokens(request, emit))

    async with aiohttp.ClientSession() as session, anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        await begun.wait()
        async with session.post(root_url + "/pause?mode=abort") as reply:
            if reply.status == 404:
                if os.environ.get("CI"):  # our own server is
                    pytest.fail("the server was not started with VLLM_SERVER_DEV_MODE=1")
                pytest.skip("the server was not started with VLLM_SERVER_DEV_MODE=1")
            assert reply.status == 200
    async with aiohttp.ClientSession() as session, session.post(root_url + "/resume") as reply:
        assert reply.status == 200
    (finish,) = ends
    return finish, sampled


async def test_the_budget_of_tokens_is_cut_to_what_the_window_holds(model: CompletionsModel) -> None:
    window = model.capabilities.window
    assert window is not None
    sampled, finish = await sample(model, [5] * (window - 3), max_tokens=50, params=FOREVER)
    assert finish == Finish(FinishReason.LENGTH)
    assert 0 < len(sampled.ids) <= 3


@pytest.mark.parametrize("more", [0, 1000])
async def test_no_room_is_an_overflow(model: CompletionsModel, more: int) -> None:
    window = model.capabilities.window
    assert window is not None
    with pytest.raises(ContextOverflow, match=f"has {window + more}"):
        await sample(model, [5] * (window + more))


@pytest.mark.parametrize("more", [0, 1000])
async def test_the_refusal_of_a_prompt_that_fills_the_window_is_an_overflow(
    server: Any, model: CompletionsModel, more: int
) -> None:
    window = model.capabilities.window
    assert window is not None
    path = "completions" if is_vllm(model) else "/completion"
    async with Transport(server.base_url) as transport:
        with pytest.raises(ContextOverflow):
            await transport.post(path, {"model": server.model, "prompt": [5] * (window + more), "max_tokens": 5})


async def test_no_tokens_asked_for_is_an_overflow(model: CompletionsModel) -> None:
    with pytest.raises(ContextOverflow):
        await sample(model, max_tokens=0)


async def test_an_empty_prompt_is_refused(model: CompletionsModel) -> None:
    with pytest.raises(ModelError, match="empty"):
        await sample(model, [])


async def test_an_id_outside_the_vocabulary_is_refused_for_good(model: CompletionsModel) -> None:
    with pytest.raises(ModelError) as caught:
        await sample(model, [99_999_999])
    assert not caught.value.retryable
    assert not isinstance(caught.value, ContextOverflow)


async def test_a_refusal_that_comes_inside_the_stream_is_an_error(model: CompletionsModel) -> None:
    if not is_vllm(model):
        return  # llama.cpp ignores such a bias
    with pytest.raises(ModelError, match="out-of-vocab") as caught:
        await sample(model, params={"logit_bias": {"99999999": 1}})
    assert not caught.value.retryable


async def test_a_model_that_is_not_served_is_named_with_those_that_are(server: Any) -> None:
    with pytest.raises(ConfigError, match="--served-model-name no-such-model") as caught:
        async with CompletionsModel(server.base_url, "no-such-model"):
            pass
    assert server.model in str(caught.value)


async def test_min_tokens_holds_the_stop_token_back(model: CompletionsModel) -> None:
    params = {"logit_bias": {str(EOS): 100}, "min_tokens": 4}
    if not is_vllm(model):
        with pytest.raises(ConfigError, match="min_tokens"):
            await sample(model, params=params)
        return
    sampled, finish = await sample(model, max_tokens=9, stop_ids=frozenset({EOS}), params=params)
    assert finish == Finish(FinishReason.STOP)
    assert len(sampled.ids) == 5
    assert sampled.ids.index(EOS) == 4


async def test_a_seed_gives_the_same_ids_again(model: CompletionsModel) -> None:
    first, _ = await sample(model, max_tokens=8, params={"seed": 7, **FOREVER})
    second, _ = await sample(model, max_tokens=8, params={"seed": 7, **FOREVER})
    assert first.ids == second.ids
    assert len(first.ids) == 8


async def test_a_turn_goes_on_from_what_the_one_before_sampled(model: CompletionsModel) -> None:
    params = {"seed": 11, **FOREVER}  # with one, a recording has one answer
    first, _ = await sample(model, max_tokens=8, params=params)
    written = model.encoded_bytes
    prompt = [*PROMPT, *first.ids, 10, 11]
    second, finish = await sample(model, prompt, max_tokens=8, params=params)
    assert finish == Finish(FinishReason.LENGTH)
    assert len(second.ids) == 8
    new = ",".join(map(str, prompt[len(PROMPT) :]))
    assert model.encoded_bytes - written == len("," + new)


async def test_many_at_once_are_all_answered(model: CompletionsModel) -> None:
    number_of = 64 if is_vllm(model) else 12  # llama.cpp has a few slots, and on a CPU they are slow
    ended = []

    async def one(number: int) -> None:
        sampled, finish = await sample(model, max_tokens=8, params={"seed": 7, **FOREVER}, request_id=f"task-{number}")
        ended.append((len(sampled.ids), finish.reason))

    async with anyio.create_task_group() as tasks:
        for number in range(number_of):
            tasks.start_soon(one, number)
    assert ended == [(8, FinishReason.LENGTH)] * number_of


@pytest.mark.skipif(not IS_REAL, reason="a recording does not generate; the fault server sees the closed connection")
async def test_a_cancelled_generation_stops_at_the_server(server: Any, model: CompletionsModel) -> None:
    if not is_vllm(model):
        pytest.skip("needs vLLM's metrics")

    async def metric(name: str) -> float:
        async with aiohttp.ClientSession() as session, session.get(server.root_url + "/metrics") as reply:
            lines = (await reply.text()).splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    sampled = [Sampled() for _ in range(8)]
    with anyio.move_on_after(0.2):
        async with anyio.create_task_group() as tasks:
            for number, each in enumerate(sampled):
                arguments: dict[str, Any] = {"max_tokens": 1900, "params": FOREVER, "sampled": each}
                tasks.start_soon(lambda n=number, a=arguments: sample(model, request_id=f"cut-{n}", **a))
    with anyio.fail_after(3):
        while await metric("vllm:num_requests_running"):
            await anyio.sleep(0.05)
    generated = await metric("vllm:generation_tokens_total")
    await anyio.sleep(0.5)
    assert await metric("vllm:generation_tokens_total") == generated
    assert all(len(each.ids) < 1900 for each in sampled)
