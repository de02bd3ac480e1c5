"""Token-level sampling from servers that fail in every way a server can."""

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import pytest
from agentkit_openai import CompletionsModel
from aiohttp import web

import agentkit as ak
from agentkit.errors import ConfigError, ContextOverflow, ModelError, RolloutEnded
from agentkit.parsing import HermesParser
from agentkit.protocols import Finish, FinishReason, HasRenderer, TokenChunk, TokenModel, TokenRequest
from agentkit.tokens import byte_chatml

Serve = Callable[[Any], Awaitable[str]]
DONE = b"data: [DONE]\n\n"
KEY = "sk-very-secret"


class Sink:
    """Takes what is sampled."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.versions: list[int | None] = []

    def __call__(self, chunk: TokenChunk) -> None:
        assert len(chunk.token_ids) == len(chunk.logprobs)
        self.ids += chunk.token_ids
        self.versions.append(chunk.policy_version)


def asking(
    prompt: list[int] | None = None,
    *,
    max_tokens: int = 9,
    stop_ids: frozenset[int] = frozenset({2}),
    deadline: float = math.inf,
    params: Mapping[str, Any] | None = None,
    request_id: str = "task-0",
) -> TokenRequest:
    prompt = [5, 6, 7] if prompt is None else prompt
    return TokenRequest(request_id, prompt, len(prompt), max_tokens, stop_ids, deadline, params or {})


def busy(status: int = 503, **headers: str) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=status, headers=headers)

    return handle


async def reset(request: web.Request) -> web.StreamResponse:
    """Close without a word."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def reset_after(*parts: bytes) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
        await asyncio.sleep(0.05)
        assert request.transport is not None
        request.transport.abort()
        return answer

    return handle


def test_it_is_a_token_model_that_brings_its_renderer() -> None:
    renderer, parser = byte_chatml(), HermesParser()
    model = CompletionsModel("http://host/v1", "tiny", renderer=renderer, parser=parser, api_key=KEY)
    assert isinstance(model, TokenModel)
    assert isinstance(model, HasRenderer)
    agent = ak.Agent(model)
    assert agent.renderer is renderer
    assert agent.parser is parser
    assert KEY not in repr(model)
    assert KEY not in repr(agent)


def test_a_renderer_that_is_missing_is_asked_for_when_the_agent_is_composed() -> None:
    model = CompletionsModel("http://host/v1", "tiny")
    with pytest.raises(ConfigError, match="renderer"):
        ak.Agent(model)
    ak.Agent(model, renderer=byte_chatml(), parser=HermesParser())


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"model": ""}, "model"),
        ({"model": None}, "model"),
        ({"dialect": "sglang"}, "dialect"),
        ({"logprobs": True}, "logprobs"),
        ({"retries": -1}, "retries"),
        ({"startup_s": -1}, "startup_s"),
        ({"params": {"stream": False}}, "stream"),
        ({"params": {"max_tokens": 5}}, "max_tokens"),
        ({"wire_cache_bytes": -1}, "wire_cache_bytes"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(arguments: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        CompletionsModel(**{"base_url": "http://host/v1", "model": "tiny", **arguments})


async def test_a_model_that_is_not_open_says_so() -> None:
    with pytest.raises(ConfigError, match="async with model"):
        await CompletionsModel("http://host/v1", "tiny").sample_tokens(asking(), Sink())


@pytest.mark.slow
async def test_what_is_sampled_comes_as_it_is_sampled(serve: Serve, fake_vllm: Any) -> None:
    going_on = asyncio.Event()
    event = fake_vllm.event

    async def trickle(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        for byte in event((4, -1.0)):
            await answer.write(bytes([byte]))
        await going_on.wait()
        await answer.write(event((5, -1.5), (2, -0.5), reason="stop") + DONE)
        return answer

    sink = Sink()

    def emit(chunk: TokenChunk) -> None:
        sink(chunk)
        going_on.set()  # the server goes on only once the first token is here

    versions = iter([7, 8])
    base_url = await serve(fake_vllm(trickle).handle) + "/v1"
    async with CompletionsModel(base_url, "tiny", policy_version=lambda: next(versions)) as model:
        with anyio.fail_after(5):
            finish = await model.sample_tokens(asking(), emit)
    assert finish == Finish(FinishReason.STOP)
    assert sink.ids == [4, 5, 2]
    assert sink.versions == [7, 8]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [busy(503), busy(429), busy(500), reset])
async def test_a_fault_before_the_first_token_is_tried_again(serve: Serve, fake_vllm: Any, fault: Any) -> None:
    server = fake_vllm(fault, fault, [fake_vllm.event((4, -1.0), (2, -1.0), reason="stop"), DONE])
    sink = Sink()
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        with anyio.fail_after(10):
            finish = await model.sample_tokens(asking(), sink)
    assert finish == Finish(FinishReason.STOP)
    assert sink.ids == [4, 2]
    ids = [headers["X-Request-Id"] for headers in server.headers]
    assert len(set(ids)) == len(ids) >= 2  # a lost try may still run there: no two have one name
    assert {headers["X-Session-ID"] for headers in server.headers} == {"task-0"}


@pytest.mark.slow
async def test_a_stream_that_breaks_before_the_first_token_is_tried_again(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm(
        reset_after(b": ping\n\n", fake_vllm.event()),
        [fake_vllm.event()],
        [fake_vllm.event((2, -1.0), reason="stop"), DONE],
    )
    sink = Sink()
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        with anyio.fail_after(10):
            assert await model.sample_tokens(asking(), sink) == Finish(FinishReason.STOP)
    assert sink.ids == [2]


@pytest.mark.slow
async def test_nothing_is_sampled_twice_after_a_stream_broke(serve: Serve, fake_vllm: Any) -> None:
    event = fake_vllm.event
    whole = [event((2, -1.0), reason="stop"), DONE]
    for fault in (reset_after(event((4, -1.0))), [event((4, -1.0))], [event((4, -1.0)), b"data: {\n\n"]):
        server = fake_vllm(fault, whole)
        sink = Sink()
        async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
            with pytest.raises(ModelError, match="part of the answer") as caught:
                await model.sample_tokens(asking(), sink)
        assert not caught.value.retryable
        assert sink.ids == [4]
        assert len(server.bodies) == 1


@pytest.mark.slow
async def test_the_wish_of_a_busy_server_is_kept(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm(busy(429, **{"Retry-After": "1"}), [fake_vllm.event((2, -1.0), reason="stop"), DONE])
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        start = anyio.current_time()
        await model.sample_tokens(asking(), Sink())
        assert 1.0 <= anyio.current_time() - start < 4.0


@pytest.mark.slow
async def test_no_try_begins_after_the_deadline(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm(busy(429, **{"Retry-After": "30"}))
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        start = anyio.current_time()
        with pytest.raises(ModelError, match=r"tried 1 times") as caught:
            await model.sample_tokens(asking(deadline=start + 5), Sink())
        assert anyio.current_time() - start < 2
    assert not caught.value.retryable
    assert len(server.bodies) == 1


@pytest.mark.slow
async def test_tries_do_not_multiply_with_those_of_the_agent(serve: Serve, fake_vllm: Any) -> None:
    renderer, parser = byte_chatml(), HermesParser()
    for retries, expected in ((1, 2), (0, 3)):
        server = fake_vllm(busy(503))
        base_url = await serve(server.handle) + "/v1"
        async with CompletionsModel(base_url, "tiny", renderer=renderer, parser=parser, retries=retries) as model:
            agent = ak.Agent(model, model_retries=2, outcomes=ak.OutcomePolicy(retries=0))
            trajectory = await agent.run("hello")
        assert trajectory.exit_reason == "model_error"
        assert len(server.bodies) == expected


@pytest.mark.slow
async def test_a_refusal_is_not_tried_again(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm(busy(400))
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        with pytest.raises(ModelError, match="400 Bad Request: busy"):
            await model.sample_tokens(asking(), Sink())
    assert len(server.bodies) == 1


@pytest.mark.slow
async def test_the_window_bounds_what_is_asked_for(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm([fake_vllm.event((2, -1.0), reason="stop"), DONE], window=10)
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        await model.sample_tokens(asking([5] * 7, max_tokens=50), Sink())
        await model.sample_tokens(asking([5] * 7, max_tokens=2), Sink())
        for prompt in ([5] * 10, [5] * 11):
            with pytest.raises(ContextOverflow):
                await model.sample_tokens(asking(prompt), Sink())
        with pytest.raises(ContextOverflow):
            await model.sample_tokens(asking(max_tokens=0), Sink())
    assert [body["max_tokens"] for body in server.bodies] == [3, 2]


@pytest.mark.slow
async def test_one_generation_may_have_a_limit_of_its_own(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm([fake_vllm.event((2, -1.0), reason="stop"), DONE], window=20)
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny", max_tokens=5) as model:
        await model.sample_tokens(asking([5] * 7, max_tokens=50), Sink())
        await model.sample_tokens(asking([5] * 7, max_tokens=4), Sink())
        await model.sample_tokens(asking([5] * 18, max_tokens=50), Sink())
    assert [body["max_tokens"] for body in server.bodies] == [5, 4, 2]


@pytest.mark.slow
async def test_a_server_that_goes_on_after_a_stop_id_is_cut_there(serve: Serve, fake_vllm: Any) -> None:
    event = fake_vllm.event
    for parts, expected in (
        ([event((4, -1.0), (2, -1.0), (9, -1.0))], [4, 2]),
        ([event((4, -1.0)), event((2, -1.0)), event((9, -1.0), reason="length")], [4, 2]),
        ([event((4, -1.0), (2, -1.0), (9, -1.0), reason="length"), DONE], [4, 2]),
    ):
        sink = Sink()
        async with CompletionsModel(await serve(fake_vllm(parts).handle) + "/v1", "tiny") as model:
            assert await model.sample_tokens(asking(), sink) == Finish(FinishReason.STOP)
        assert sink.ids == expected


@pytest.mark.slow
async def test_more_tokens_than_were_asked_for_are_not_passed_on(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm([fake_vllm.event((4, -1.0), (5, -1.0)), fake_vllm.event((6, -1.0), (7, -1.0)), DONE])
    sink = Sink()
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        with pytest.raises(ModelError, match="more than the 3 tokens"):
            await model.sample_tokens(asking(max_tokens=3), sink)
    assert sink.ids == [4, 5]


@pytest.mark.slow
async def test_an_end_that_the_rollout_sets_closes_the_connection(serve: Serve, fake_vllm: Any) -> None:
    closed = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        try:
            while True:
                await answer.write(fake_vllm.event((4, -1.0)))
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    def full(chunk: TokenChunk) -> None:
        raise RolloutEnded("full")

    async with CompletionsModel(await serve(fake_vllm(endless).handle) + "/v1", "tiny") as model:
        with pytest.raises(RolloutEnded):
            await model.sample_tokens(asking(max_tokens=10_000), full)
        with anyio.fail_after(2):
            await closed.wait()
        closed.clear()
        sink = Sink()
        with anyio.move_on_after(0.3):
            await model.sample_tokens(asking(max_tokens=10_000), sink)
        with anyio.fail_after(2):
            await closed.wait()
        assert sink.ids


@pytest.mark.slow
async def test_a_deadline_keeps_what_was_sampled(serve: Serve, fake_vllm: Any) -> None:
    async def stalls(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(fake_vllm.event((104, -1.0), (105, -1.5)))
        await asyncio.sleep(30)
        raise AssertionError

    base_url = await serve(fake_vllm(stalls).handle) + "/v1"
    async with CompletionsModel(base_url, "tiny", renderer=byte_chatml(), parser=HermesParser()) as model:
        agent = ak.Agent(model, budget=ak.Budget(generation_s=0.5))
        with anyio.fail_after(10):
            trajectory = await agent.run("hello")
    assert trajectory.exit_reason == "generation_timeout"
    (chain,) = trajectory.chains
    assert list(chain.ids[-2:]) == [104, 105]
    assert list(chain.logprobs[-2:]) == [-1.0, -1.5]
    assert list(chain.response_mask[-2:]) == [1, 1]


@pytest.mark.slow
async def test_params_of_the_agent_go_over_those_of_the_model(serve: Serve, fake_vllm: Any) -> None:
    server = fake_vllm([fake_vllm.event((2, -1.0), reason="stop"), DONE])
    params = {"temperature": 0.5, "seed": 1}
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny", params=params) as model:
        await model.sample_tokens(asking(params={"seed": 2}), Sink())
        with pytest.raises(ConfigError, match=r"params\['stop_token_ids'\].*renderer"):
            await model.sample_tokens(asking(params={"stop_token_ids": [3]}), Sink())
    (body,) = server.bodies
    assert (body["temperature"], body["seed"], body["top_p"]) == (0.5, 2, 1.0)


@pytest.mark.slow
async def test_one_warning_says_that_raw_logprobs_are_of_another_distribution(
    serve: Serve, fake_vllm: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = fake_vllm([fake_vllm.event((2, -1.0), reason="stop"), DONE])
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model:
        await model.sample_tokens(asking(params={"temperature": 1, "top_k": -1, "top_p": 1.0}), Sink())
        assert caplog.records == []
        for _ in range(3):
            await model.sample_tokens(asking(params={"temperature": 0.5}), Sink())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "temperature=0.5" in record.getMessage()
    assert "--logprobs-mode processed_logprobs" in record.getMessage()


@pytest.mark.slow
async def test_a_key_that_the_stream_quotes_is_not_passed_on(serve: Serve, fake_vllm: Any) -> None:
    error = {"error": {"message": f"bad key {KEY}", "code": 400}}
    server = fake_vllm([b"data: " + json.dumps(error).encode() + b"\n\n"])
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny", api_key=KEY) as model:
        with pytest.raises(ModelError, match="bad key") as caught:
            await model.sample_tokens(asking(), Sink())
    assert KEY not in str(caught.value)


@pytest.mark.slow
async def test_two_generations_of_one_trajectory_at_once_do_not_mix(serve: Serve, fake_vllm: Any) -> None:
    async def echo(request: web.Request) -> web.StreamResponse:
        last = (await request.json())["prompt"][-1]
        return await fake_vllm.stream(request, [fake_vllm.event((last, -1.0), reason="length"), DONE])

    server = fake_vllm(echo)
    sinks = [Sink() for _ in range(20)]
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny") as model, anyio.create_task_group() as all_:
        for number, sink in enumerate(sinks):
            all_.start_soon(model.sample_tokens, asking([5, 6, 10 + number]), sink)
    assert [sink.ids for sink in sinks] == [[10 + number] for number in range(20)]
    assert len({headers["X-Request-Id"] for headers in server.headers}) == 20


@pytest.mark.slow
@pytest.mark.parametrize(("params", "held"), [({}, 0), ({"min_tokens": 3}, 3), ({"min_tokens": None}, 0)])
async def test_an_end_at_a_stop_string_says_which_and_from_where_it_counted(
    serve: Serve, fake_vllm: Any, params: dict[str, Any], held: int
) -> None:
    ended = json.loads(fake_vllm.event((5, -1.5), reason="stop")[6:])
    ended["choices"][0].update(stop_reason="</answer>", text="</answer")  # the server cuts its text, not its ids
    server = fake_vllm([fake_vllm.event((4, -1.0)), b"data: " + json.dumps(ended).encode() + b"\n\n", DONE])
    sink = Sink()
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny", params={"stop": ["</answer>"]}) as model:
        finish = await model.sample_tokens(asking(params=params), sink)
    assert finish == Finish(FinishReason.STOP, stop_string="</answer>", min_tokens=held)
    assert sink.ids == [4, 5]
    assert server.bodies[0]["stop"] == ["</answer>"]


@pytest.mark.slow
async def test_a_second_continuation_is_not_mixed_into_the_first(serve: Serve, fake_vllm: Any) -> None:
    other = json.loads(fake_vllm.event((9, -9.0))[6:])
    other["choices"][0]["index"] = 1
    parts = [fake_vllm.event((4, -1.0)), b"data: " + json.dumps(other).encode() + b"\n\n", fake_vllm.event((5, -1.0))]
    sink = Sink()
    async with CompletionsModel(await serve(fake_vllm(parts).handle) + "/v1", "tiny") as model:
        with pytest.raises(ModelError, match="several continuations") as caught:
            await model.sample_tokens(asking(), sink)
    assert not caught.value.retryable
    assert sink.ids == [4]


async def branching(rollout: ak.Rollout) -> None:
    """Four candidates, three of which are dropped; then a turn that is taken back and sampled again."""
    actions = await rollout.candidates(4)
    await rollout.act(actions[2])
    await rollout.act(await rollout.sample())
    rollout.rollback()
    await rollout.act(await rollout.sample())


class Parrot:
    async def start(self, task: ak.Task) -> None: ...

    async def step(self, action: ak.Action) -> ak.Observation:
        return ak.Observation("go on")

    async def close(self) -> None: ...


@pytest.mark.slow
async def test_chains_that_share_a_beginning_are_written_once(serve: Serve, fake_vllm: Any) -> None:
    renderer, parser = byte_chatml(), HermesParser()
    (stop_id,) = {renderer.tokenizer.control["<|im_end|>"]}
    said = iter(range(65, 90))

    async def answer(request: web.Request) -> web.StreamResponse:  # something else each time
        event = fake_vllm.event((next(said), -1.0), (stop_id, -0.5), reason="stop")
        return await fake_vllm.stream(request, [event, DONE])

    server = fake_vllm(answer, window=100_000)
    async with CompletionsModel(await serve(server.handle) + "/v1", "tiny", renderer=renderer, parser=parser) as model:
        agent = ak.Agent(model, env=Parrot, loop=branching, budget=ak.Budget(max_turns=9, max_tokens=90_000))
        before = model.encoded_bytes
        trajectory = await agent.run("count " * 10_000)
        written = model.encoded_bytes - before
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    prompts = [body["prompt"] for body in server.bodies]
    assert len(prompts) == 6
    assert len(trajectory.chains) >= 5
    sampled = {tuple(chain.ids[: turn.start]) for turn in trajectory.turns for chain in [trajectory.chains[turn.chain]]}
    assert {tuple(prompt) for prompt in prompts} == sampled
    first = len(json.dumps(prompts[0], separators=(",", ":"))) - 2
    assert first > 20_000
    assert written < first + 200
