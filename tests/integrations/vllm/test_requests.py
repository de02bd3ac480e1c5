"""Generations under way, on an engine that behaves like vLLM's and says what is still running in it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from agentkit_vllm.requests import Requests
from attrs import define, field

from agentkit.errors import ConfigError, ModelError, RolloutEnded
from agentkit.protocols import Finish, FinishReason, TokenChunk, TokenRequest


def output(
    *ids: int, finish: str | None = None, logprobs: Any = "as sampled", by: object = None, prompt_logprobs: Any = None
) -> Any:
    if logprobs == "as sampled":
        logprobs = [{token_id: SimpleNamespace(logprob=-token_id / 8)} for token_id in ids]
    return SimpleNamespace(
        outputs=[SimpleNamespace(index=0, token_ids=ids, logprobs=logprobs, finish_reason=finish, stop_reason=by)],
        prompt_logprobs=prompt_logprobs,
    )


@define
class Engine:
    """Yields `outputs`, then waits for long where the last is not the end. Adding and aborting take a moment."""

    outputs: list[Any]
    error: Exception | None = None
    running: set[str] = field(factory=set)
    prompts: list[Any] = field(factory=list)
    seen: list[Any] = field(factory=list)
    ids: list[str] = field(factory=list)
    model_config: Any = field(factory=lambda: SimpleNamespace(max_model_len=64))

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncGenerator[Any, None]:
        self.running.add(request_id)
        self.ids.append(request_id)
        self.prompts.append(prompt)
        self.seen.append(params)
        await asyncio.sleep(0.02)  # adding it: a cancel here is not noticed, as in vLLM
        try:
            for each in self.outputs:
                await asyncio.sleep(0)
                if each.outputs[0].finish_reason is not None:
                    self.running.discard(request_id)
                yield each
            if self.error is not None:
                raise self.error
            if request_id in self.running:
                await asyncio.sleep(5)
        except (asyncio.CancelledError, GeneratorExit):
            await self.abort(request_id)
            raise

    async def abort(self, request_id: str) -> None:
        for _ in range(5):  # a cancel that comes again cuts it short
            await asyncio.sleep(0.002)
        self.running.discard(request_id)

    def shutdown(self) -> None:
        self.running.clear()


@define
class Params:
    """As vLLM's: refuses what it does not know."""

    __struct_fields__ = ("temperature", "structured_outputs", "stop", "min_tokens")
    values: dict[str, Any]

    def __init__(self, **values: Any) -> None:
        if values.get("temperature", 1) < 0:
            raise ValueError("temperature must be non-negative")
        self.values = values


class EngineDeadError(Exception):
    """Named as vLLM's."""


class EngineGenerateError(Exception):
    """Named as vLLM's."""


class QueueOverflowError(Exception):
    """Named as vLLM's."""

    http_status = 503


SAMPLING = SimpleNamespace(
    SamplingParams=Params,
    StructuredOutputsParams=lambda **fields: ("structured", fields),
    RequestOutputKind=SimpleNamespace(DELTA="delta"),
)


def requests_of(engine: Engine, version: int | Callable[[], int | None] | None = None) -> Requests:
    return Requests(engine, SAMPLING, version)


def request(request_id: str = "r") -> TokenRequest:
    return TokenRequest(request_id, [5, 6], 2, 10, frozenset({2}), 60.0)


async def run(requests: Requests, emit: Any = lambda chunk: None, **params: Any) -> Any:
    return await requests.run(request(), params, 10, emit)


async def test_what_is_sampled_is_pushed_as_it_comes():
    engine, chunks, versions = Engine([output(3), output(4, 5), output(2, finish="stop")]), [], iter((1, 1, 2))
    finish = await run(requests_of(engine, lambda: next(versions)), chunks.append)
    assert finish.reason is FinishReason.STOP
    assert chunks == [
        TokenChunk([3], [-3 / 8], 1),
        TokenChunk([4, 5], [-4 / 8, -5 / 8], 1),
        TokenChunk([2], [-2 / 8], 2),
    ]
    assert engine.prompts == [{"type": "token", "prompt_token_ids": [5, 6]}]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("repetition", FinishReason.LENGTH),
        ("abort", FinishReason.ABORTED),
    ],
)
async def test_ends_are_told_apart(said: str, reason: FinishReason):
    assert (await run(requests_of(Engine([output(3), output(finish=said)])))).reason is reason


@pytest.mark.parametrize(("said", "retryable"), [("error", True), ("something new", False)])
async def test_an_end_that_is_none_is_an_error(said: str, retryable: bool):
    with pytest.raises(ModelError, match=said) as caught:
        await run(requests_of(Engine([output(3, finish=said)])))
    assert caught.value.retryable is retryable


async def test_tries_of_one_trajectory_never_share_an_id():
    engine = Engine([output(2, finish="stop")])
    requests = requests_of(engine)
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(run, requests)
    assert len(set(engine.ids)) == 5
    assert all(each.startswith("r-") for each in engine.ids)


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05], ids=["at once", "while it is added", "while it samples"])
async def test_a_cancelled_scope_leaves_nothing_in_the_engine(after_s: float):
    engine, chunks = Engine([output(3)]), []
    with anyio.move_on_after(after_s) as scope:
        await run(requests_of(engine), chunks.append)
    assert scope.cancelled_caught
    assert engine.running == set()
    assert len(chunks) == (after_s > 0.02)


async def test_cancelled_twice_natively_it_leaves_nothing_in_the_engine():
    engine = Engine([output(3)])
    task = asyncio.create_task(run(requests_of(engine)))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.1)  # the second cancel does not wait for the abort
    assert engine.running == set()


async def test_a_generation_that_is_over_is_aborted():
    engine = Engine([output(3), output(4)])

    def emit(chunk: TokenChunk) -> None:
        raise RolloutEnded("over")

    with pytest.raises(RolloutEnded):
        await run(requests_of(engine), emit)
    assert engine.running == set()


async def test_closing_ends_what_is_under_way():
    engine, faults = Engine([output(3)]), []
    requests = requests_of(engine)

    async def sample() -> None:
        try:
            await run(requests)
        except ModelError as error:
            faults.append(str(error))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(sample)
        await anyio.sleep(0.05)
        await requests.close()
    assert faults == ["the model was closed while it sampled"] * 3
    assert engine.running == set()


@pytest.mark.parametrize(
    "logprobs",
    [None, [], [{3: SimpleNamespace(logprob=float("nan"))}], [{3: SimpleNamespace(logprob=float("-inf"))}]],
    ids=["none", "too few", "nan", "-inf"],
)
async def test_tokens_without_sound_log_probabilities_are_an_error(logprobs: Any):
    chunks: list[TokenChunk] = []
    with pytest.raises(ModelError, match="log-probabilit"):
        await run(requests_of(Engine([output(3, logprobs=logprobs)])), chunks.append)
    assert chunks == []


@pytest.mark.parametrize(
    "logprobs",
    [None, [], [{3: SimpleNamespace(logprob=-1.0)}] * 2, [{4: SimpleNamespace(logprob=-1.0)}]],
    ids=["none", "too few", "too many", "of others"],
)
async def test_log_probabilities_that_do_not_fit_name_the_setting_of_the_engine(logprobs: Any):
    with pytest.raises(ModelError, match=r"logprobs=0.*engine\.logprobs_mode"):
        await run(requests_of(Engine([output(3, logprobs=logprobs)])))


async def test_of_several_likely_tokens_the_sampled_one_s_log_probability_is_kept():
    chunks: list[TokenChunk] = []
    likely = [{9: SimpleNamespace(logprob=-0.25), 3: SimpleNamespace(logprob=-1.5)}]
    await run(requests_of(Engine([output(3, logprobs=likely), output(finish="stop")])), chunks.append)
    assert chunks == [TokenChunk([3], [-1.5])]


async def test_scores_of_the_prompt_are_kept_apart():
    scores = [None, {6: SimpleNamespace(logprob=-0.25)}]
    engine, chunks = Engine([output(3, prompt_logprobs=scores), output(2, finish="stop")]), []
    await run(requests_of(engine), chunks.append)
    assert chunks == [TokenChunk([3], [-3 / 8]), TokenChunk([2], [-2 / 8])]


@pytest.mark.parametrize(
    ("finish", "by", "params", "expected"),
    [
        ("stop", "r>", {"stop": ["r>"]}, Finish(stop_string="r>")),
        ("stop", "r>", {"stop": ["r>"], "min_tokens": 4}, Finish(stop_string="r>", min_tokens=4)),
        ("stop", 70, {"min_tokens": 4}, Finish()),
        ("stop", None, {}, Finish()),
        ("length", None, {"stop": ["r>"]}, Finish(FinishReason.LENGTH)),
    ],
)
async def test_the_stop_string_that_ended_it_is_named(finish: str, by: object, params: Any, expected: Finish):
    assert await run(requests_of(Engine([output(3), output(4, finish=finish, by=by)])), **params) == expected


async def test_a_dead_engine_is_no_reason_to_try_again():
    with pytest.raises(ModelError, match="dead") as caught:
        await run(requests_of(Engine([output(3)], EngineDeadError("see above"))))
    assert not caught.value.retryable


async def test_a_busy_engine_is_a_reason_to_try_again():
    with pytest.raises(ModelError, match="QueueOverflowError") as caught:
        await run(requests_of(Engine([], QueueOverflowError("busy"))))
    assert caught.value.retryable


async def test_a_failed_generation_says_what_failed():
    failed = EngineGenerateError()
    failed.__cause__ = ValueError("token id 9 is out of vocabulary")
    with pytest.raises(ModelError, match="ValueError: token id 9") as caught:
        await run(requests_of(Engine([], failed)))
    assert not caught.value.retryable


async def test_params_are_vllms_own_and_streamed_as_deltas():
    engine = Engine([output(2, finish="stop")])
    await run(requests_of(engine), temperature=0.5, structured_outputs={"regex": "a*"})
    assert engine.seen[0].values == {
        "temperature": 0.5,
        "structured_outputs": ("structured", {"regex": "a*"}),
        "max_tokens": 10,
        "stop_token_ids": [2],
        "logprobs": 0,
        "detokenize": False,
        "output_kind": "delta",
    }


@pytest.mark.parametrize(("params", "words"), [({"temperature": -1}, "non-negative"), ({"tempo": 1}, r"params\.tempo")])
async def test_params_that_vllm_does_not_take_reach_no_engine(params: Any, words: str):
    engine = Engine([])
    with pytest.raises(ConfigError, match=words):
        await run(requests_of(engine), **params)
    assert engine.ids == []
