"""A whole policy behind a chat API: rollouts, faults of servers, cancellation, and what reaches the wire."""

import json
import logging
from collections.abc import Awaitable, Callable

import anyio
import pytest
from agentkit_openai import ChatModel, ChatUsage
from aiohttp import web
from multidict import CIMultiDict

import agentkit as ak
from agentkit import ConfigError, ContextOverflow, ExitReason, ModelError, OutcomePolicy
from agentkit.protocols import (
    FaultStatus,
    FinishReason,
    MessageModel,
    MessageRequest,
    ObservationStatus,
    TextChunk,
    ToolCall,
    ToolSpec,
    user,
)

pytestmark = pytest.mark.slow

KEY = "sk-very-secret"
TOOL = ToolSpec("calc", "", {"type": "object", "properties": {"e": {"type": "string"}}, "required": ["e"]})


@ak.tool
async def calc(e: str) -> str:
    """Evaluate an expression."""
    return f"{e} = 2"


def text(*parts: str, finish: str | None = "stop") -> list[dict]:
    events = [{"choices": [{"index": 0, "delta": {"content": part}, "finish_reason": None}]} for part in parts]
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}]


def call(arguments: str, *, call_id: str = "c1", name: str = "calc", finish: str = "tool_calls") -> list[dict]:
    head = {"index": 0, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
    pieces = [head, *({"index": 0, "function": {"arguments": part}} for part in arguments)]
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [each]}, "finish_reason": None}]} for each in pieces]
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    return [*events, {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}, usage]


Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Script:
    """A chat server that answers with what it was given, one reply after another, the last one for ever."""

    def __init__(self, *replies: "list[dict] | Reply | web.Response", models: object = None) -> None:
        self.replies = list(replies)
        self.models = models
        self.bodies: list[dict] = []
        self.headers: list[CIMultiDict[str]] = []
        self.gone = anyio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response(self.models) if self.models else web.Response(status=404)
        assert request.path == "/v1/chat/completions"
        self.bodies.append(await request.json())
        self.headers.append(request.headers.copy())
        reply = self.replies[min(len(self.bodies), len(self.replies)) - 1]
        try:
            if isinstance(reply, list):
                return await sse(request, reply)
            if isinstance(reply, tuple):
                return web.json_response(reply[1], status=reply[0])
            return await reply(request)
        except BaseException:
            self.gone.set()
            raise


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def send(response: web.StreamResponse, events: list[dict]) -> None:
    for event in events:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())


async def sse(request: web.Request, events: list[dict]) -> web.StreamResponse:
    response = await opened(request)
    await send(response, events)
    await response.write(b": keep-alive\n\ndata: [DONE]\n\n")
    return response


def broken_after(events: list[dict]) -> Reply:
    async def reply(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await send(response, events)
        await anyio.sleep(0.05)
        request.transport.abort()
        return response

    return reply


async def reset(request: web.Request) -> web.StreamResponse:
    request.transport.abort()
    return web.Response()


def error(status: int, message: str, **more) -> tuple[int, dict]:
    return status, {"error": {"message": message, **more}}


def ask(*, tools=(), max_tokens: int = 1000, seconds: float = 30, params=None, request_id="r") -> MessageRequest:
    return MessageRequest(request_id, [user("Hi.")], tools, max_tokens, anyio.current_time() + seconds, params or {})


async def asked(model: ChatModel, request: MessageRequest | None = None):
    chunks: list[TextChunk] = []
    finish = await model.sample_message(request or ask(), chunks.append)
    return finish, chunks


async def test_a_rollout_answers_a_malformed_call_calls_and_finishes(serve) -> None:
    script = Script(call('{"e": Infinity}'), call('{"e": "1+1"}', call_id=""), text("It is ", "2."))
    async with ChatModel(await serve(script.handle) + "/v1", "m", params={"seed": 1}) as model:
        assert isinstance(model, MessageModel)
        agent = ak.Agent(model, tools=[calc], params={"temperature": 0.5})
        trajectory = await agent.run(ak.Task("t", [ak.user("What is 1+1?"), ak.system("Be brief.")]))
        assert model.usage == ChatUsage(3, 20, 10)
    assert trajectory.exit_reason is ExitReason.FINISHED
    first, second, third = trajectory.turns
    assert (first.action.faults[0].status, first.action.faults[0].raw) == (FaultStatus.INVALID_JSON, '{"e": Infinity}')
    assert [each.status for each in first.observations] == [ObservationStatus.FORMAT_ERROR]
    assert second.action.calls == (ToolCall("call00100", "calc", {"e": "1+1"}),)
    assert [each.content for each in second.observations] == ["1+1 = 2"]
    assert third.action.text == "It is 2."

    bodies = script.bodies
    assert [message["role"] for message in bodies[0]["messages"]] == ["system", "user"]
    assert {key: bodies[0][key] for key in bodies[0] if key not in ("messages", "tools")} == {
        "model": "m", "seed": 1, "temperature": 0.5, "stream": True, "stream_options": {"include_usage": True},
        "max_tokens": 131072,
    }  # fmt: skip
    assert bodies[0]["tools"] == bodies[2]["tools"]
    assert bodies[0]["tools"][0]["function"]["name"] == "calc"
    said = bodies[2]["messages"]
    assert said[:2] == bodies[0]["messages"]
    calls = [message["tool_calls"][0] for message in said if message["role"] == "assistant"]
    assert [(each["id"], each["function"]["arguments"]) for each in calls] == [
        ("c1", "{}"),
        ("call00100", '{"e":"1+1"}'),
    ]
    answers = [message for message in said if message["role"] == "tool"]
    assert [each["tool_call_id"] for each in answers] == ["c1", "call00100"]
    assert "Infinity" in answers[0]["content"]


async def test_requests_of_a_trajectory_share_a_session_and_no_request_id(serve) -> None:
    script = Script(call('{"e": "1"}'), error(503, "busy"), text("done"))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        await ak.Agent(model, tools=[calc]).run("Go.")
    assert len({each["X-Session-ID"] for each in script.headers}) == 1
    assert len({each["X-Request-Id"] for each in script.headers}) == 3


async def test_text_arrives_while_the_server_still_generates(serve) -> None:
    arrived = anyio.Event()

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await send(response, text("first")[:1])
        await arrived.wait()
        await send(response, text("second"))
        return response

    async with ChatModel(await serve(Script(slowly).handle) + "/v1", "m") as model:
        with anyio.fail_after(20):
            finish = await model.sample_message(ask(), lambda chunk: arrived.set())
    assert finish.message.content == "firstsecond"


async def test_a_deadline_keeps_the_text_and_lets_the_server_stop(serve) -> None:
    async def forever(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        while True:
            await send(response, text("word ")[:1])
            await anyio.sleep(0.02)

    script = Script(forever)
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model, budget=ak.Budget(generation_s=0.5)).run("Go.")
        with anyio.fail_after(10):
            await script.gone.wait()
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert trajectory.turns[0].action.text.startswith("word word")


@pytest.mark.parametrize(
    "faults",
    [
        [error(500, "oops"), error(503, "busy")],
        [(429, {"error": {"message": "slow down"}})],
        [reset],
        [broken_after([])],
        [broken_after(call('{"e": "1"')[:6])],
        [text("", finish=None)],
    ],
)
async def test_what_may_pass_is_tried_again_while_nothing_was_said(serve, faults) -> None:
    script = Script(*faults, call('{"e": "1"}'))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        finish, chunks = await asked(model, ask(tools=(TOOL,)))
        assert model.usage.answers == 1
    assert finish.attempts == (ToolCall("c1", "calc", {"e": "1"}),)
    assert chunks == []
    assert len(script.bodies) == len(faults) + 1
    assert all(body == script.bodies[0] for body in script.bodies)


async def test_an_answer_that_breaks_off_after_text_is_an_error_and_the_text_is_kept(serve) -> None:
    script = Script(broken_after(text("half of")[:1]))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        agent = ak.Agent(model, outcomes=OutcomePolicy(retries=0))
        trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert trajectory.turns[0].action.text == "half of"
    assert len(script.bodies) == 1


async def test_tries_end_with_the_deadline_and_are_not_multiplied(serve) -> None:
    script = Script(error(503, "busy"))
    url = await serve(script.handle) + "/v1"
    async with ChatModel(url, "m", retries=2) as model:
        trajectory = await ak.Agent(model, outcomes=OutcomePolicy(retries=0)).run("Go.")
        assert trajectory.exit_reason is ExitReason.MODEL_ERROR
        assert "tried 3 times" in trajectory.error
    assert len(script.bodies) == 3
    async with ChatModel(url, "m") as model:
        with pytest.raises(ModelError, match="tried 1 times"):
            await asked(model, ask(seconds=0.1))


async def test_what_a_refusal_taught_holds_for_all_later_requests(serve) -> None:
    script = Script(
        error(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' "
                   "instead.", param="max_tokens"),
        error(422, "Unexpected fields in the request: {'stream_options'}"),
        text("one"),
    )  # fmt: skip
    async with ChatModel(await serve(script.handle) + "/v1", "m", max_tokens=50) as model:
        for _ in range(2):
            finish, _ = await asked(model)
            assert finish.message.content == "one"
    asked_for = [{key: body[key] for key in body if key not in ("model", "messages")} for body in script.bodies]
    assert asked_for == [
        {"stream": True, "max_tokens": 50, "stream_options": {"include_usage": True}},
        {"stream": True, "max_completion_tokens": 50, "stream_options": {"include_usage": True}},
        {"stream": True, "max_completion_tokens": 50},
        {"stream": True, "max_completion_tokens": 50},
    ]


async def test_a_budget_beyond_the_window_is_not_asked_for(serve) -> None:
    models = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}
    script = Script(text("one"), models=models)
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        await ak.Agent(model).run("Go.")
        await asked(model, ask(max_tokens=2047))
    assert [body.get("max_tokens") for body in script.bodies] == [None, 2047]


async def test_no_room_ends_the_rollout_at_its_token_limit(serve) -> None:
    said = "request (18031 tokens) exceeds the available context size (2048 tokens), try increasing it"
    script = Script(error(400, said, type="exceed_context_size_error"))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model).run("Go.")
        assert trajectory.exit_reason is ExitReason.TOKEN_LIMIT
        with pytest.raises(ContextOverflow, match="max_tokens must be >= 1"):
            await asked(model, ask(max_tokens=0))
    assert len(script.bodies) == 1


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
    ],
)
async def test_a_server_that_takes_no_tools_is_asked_once_and_the_flags_are_named(serve, status, said) -> None:
    script = Script(error(status, said))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model, tools=[calc], outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    for flag in ("--enable-auto-tool-choice", "--tool-call-parser", "--jinja"):
        assert flag in trajectory.error
    assert len(script.bodies) == 1


async def test_a_raw_call_in_the_text_is_a_format_error_and_warned_of_once(serve, caplog) -> None:
    raw = '<tool_call>\n{"name": "calc", "arguments": {"e": "1"}}\n</tool_call>'
    script = Script(text(raw), text(raw), text("done"))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model, tools=[calc]).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    statuses = [[each.status for each in turn.observations] for turn in trajectory.turns]
    assert statuses == [[ObservationStatus.FORMAT_ERROR]] * 2 + [[]]
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "--tool-call-parser" in warnings[0]


async def test_an_unknown_finish_reason_is_warned_of_and_counts_as_stop(serve, caplog) -> None:
    async with ChatModel(await serve(Script(text("done", finish="odd\x1b[31m")).handle) + "/v1", "m") as model:
        finish, _ = await asked(model)
    assert finish.reason is FinishReason.STOP
    (warning,) = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "odd" in warning
    assert "\x1b" not in warning


async def test_a_server_that_does_not_stream_is_asked_for_whole_replies(serve) -> None:
    message = {"role": "assistant", "content": "x", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "calc", "arguments": '{"e": "1"}'}},
    ]}  # fmt: skip
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    reply = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}
    script = Script((200, reply))
    async with ChatModel(await serve(script.handle) + "/v1", "m", stream=False) as model:
        finish, chunks = await asked(model, ask(tools=(TOOL,)))
        assert model.usage == ChatUsage(1, 3, 4)
    assert finish.attempts == (ToolCall("a", "calc", {"e": "1"}),)
    assert chunks == [TextChunk("x")]
    assert script.bodies[0]["stream"] is False
    assert "stream_options" not in script.bodies[0]


async def test_a_filtered_answer_is_an_error_that_keeps_the_text(serve) -> None:
    async with ChatModel(await serve(Script(text("some", finish="content_filter")).handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model, outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert trajectory.exit_reason is ExitReason.MODEL_ERROR
    assert "content filter" in trajectory.error
    assert trajectory.turns[0].action.text == "some"


async def test_an_abort_of_the_server_is_told_apart(serve) -> None:
    async with ChatModel(await serve(Script(text("some", finish="abort")).handle) + "/v1", "m") as model:
        finish, _ = await asked(model)
    assert (finish.reason, finish.message.content) == (FinishReason.ABORTED, "some")


async def test_the_key_is_sent_and_nowhere_shown(serve, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    script = Script(error(400, f"the key {KEY} is odd"), text("x"))
    async with ChatModel(await serve(script.handle) + "/v1", "m", api_key=KEY, headers={"X-Other": "hush"}) as model:
        with pytest.raises(ModelError) as caught:
            await asked(model)
        await asked(model)
        assert KEY not in repr(model)
    assert script.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert script.headers[0]["X-Other"] == "hush"
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text


async def test_params_that_the_client_sets_are_refused_at_first_sight(serve) -> None:
    for params in ({"n": 2}, {"messages": []}, {"max_tokens": 5}):
        with pytest.raises(ConfigError, match=next(iter(params))):
            ChatModel("http://127.0.0.1:1/v1", "m", params=params)
    script = Script(text("x"))
    async with ChatModel(await serve(script.handle) + "/v1", "m") as model:
        trajectory = await ak.Agent(model, params={"n": 2}, outcomes=OutcomePolicy(retries=0)).run("Go.")
        assert "n must be 1, found 2" in trajectory.error
    assert script.bodies == []


def test_arguments_that_cannot_work_are_named() -> None:
    for wrong in ({"base_url": "ftp://x"}, {"model": ""}, {"max_tokens": 0}, {"retries": -1}, {"startup_s": -1}):
        name = next(iter(wrong))
        with pytest.raises(ConfigError, match=name):
            ChatModel(**{"base_url": "http://127.0.0.1:1/v1", "model": "m", **wrong})


async def test_a_model_is_opened_first(serve) -> None:
    model = ChatModel(await serve(Script(text("x")).handle) + "/v1", "m")
    with pytest.raises(ConfigError, match="is not open"):
        await asked(model)
    async with model:
        await asked(model)
    async with model:  # and may be opened again
        await asked(model)


def test_it_runs_on_asyncio_and_says_so() -> None:
    async def main() -> None:
        async with ChatModel("http://127.0.0.1:1/v1", "m"):
            pass

    with pytest.raises(ConfigError, match="asyncio"):
        anyio.run(main, backend="trio")


async def test_the_models_of_the_server_are_looked_at(serve) -> None:
    def models(owner: str) -> dict:
        return {"data": [{"id": "other", "owned_by": owner}]}

    url = await serve(Script(text("x"), models=models("vllm")).handle)
    with pytest.raises(ConfigError, match="serves 'other'"):
        async with ChatModel(url + "/v1", "m"):
            pass
    url = await serve(Script(text("x"), models=models("openai")).handle)
    async with ChatModel(url + "/v1", "m") as model:  # an alias, perhaps
        await asked(model)


async def test_a_server_that_is_not_up_is_waited_for(serve) -> None:
    with pytest.raises(ModelError, match=r"within 0.2 s"):
        async with ChatModel("http://127.0.0.1:1/v1", "m", startup_s=0.2):
            pass
    begun = anyio.current_time()

    async def late(request: web.Request) -> web.StreamResponse:
        if anyio.current_time() - begun < 0.5:
            return web.Response(status=503)
        return web.json_response({"data": [{"id": "m"}]})

    async with ChatModel(await serve(late) + "/v1", "m", startup_s=20):
        pass
    assert anyio.current_time() - begun >= 0.5


async def test_many_rollouts_share_one_model(serve) -> None:
    async def reply(request: web.Request) -> web.StreamResponse:
        said = (await request.json())["messages"]
        number = said[0]["content"]
        events = call(json.dumps({"e": number})) if len(said) == 1 else text(f"{number}: {said[-1]['content']}")
        return await sse(request, events)

    async with ChatModel(await serve(Script(reply).handle) + "/v1", "m", max_connections=64) as model:
        async with ak.Pool(ak.Agent(model, tools=[calc]), max_rollouts=300) as pool:
            trajectories = await pool.run(ak.Task(str(number), str(number)) for number in range(300))
        assert model.usage.answers == 600
    for trajectory in trajectories:
        number = trajectory.key.task_id
        assert trajectory.exit_reason is ExitReason.FINISHED
        assert trajectory.turns[1].action.text == f"{number}: {number} = 2"


async def test_a_cancelled_request_leaves_the_model_usable(serve) -> None:
    script = Script(text("x"))

    async def silent(request: web.Request) -> web.StreamResponse:
        await anyio.sleep_forever()

    script.replies = [silent, text("x")]
    async with ChatModel(await serve(script.handle) + "/v1", "m", max_connections=1) as model:
        with anyio.move_on_after(0.2):
            await asked(model)
        with anyio.fail_after(10):
            await script.gone.wait()
            finish, _ = await asked(model)
    assert finish.message.content == "x"
