"""What a chat server must do with what the client asks, and the client with what it answers."""

import os
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest
from agentkit_openai import ChatModel

import agentkit as ak
from agentkit import ConfigError, ContextOverflow, ExitReason, ModelError
from agentkit.protocols import (
    FaultStatus,
    Finish,
    FinishReason,
    MessageRequest,
    ObservationStatus,
    TextChunk,
    ToolCall,
    ToolSpec,
    user,
)

pytestmark = pytest.mark.slow

IS_REAL = "AGENTKIT_SERVER_URL" in os.environ
TOOL = ToolSpec("calc", "Evaluates.", {"type": "object", "properties": {"e": {"type": "string"}}, "required": ["e"]})
CALL = '<tool_call>\n{"name": "calc", "arguments": {"e": "1+1"}}\n</tool_call>'
GREEDY = {"temperature": 0}


@ak.tool
async def calc(e: str) -> str:
    """Evaluate an expression."""
    return f"{e} = 2"


@pytest.fixture(params=["real"] if IS_REAL else ["vllm_0.32", "llamacpp_11434"])
async def server(request: pytest.FixtureRequest, make_server) -> Any:
    return await make_server(f"chat_{request.param}.jsonl")


@pytest.fixture
async def model(server) -> AsyncIterator[ChatModel]:
    async with ChatModel(server.base_url, server.model) as opened:
        yield opened


@pytest.fixture
async def is_vllm(server) -> bool:
    async with aiohttp.ClientSession() as session, session.get(server.base_url + "/models") as reply:
        return (await reply.json())["data"][0]["owned_by"] == "vllm"


def forced(text: str) -> dict:
    """Params under which vLLM samples nothing but `text`, always in the same tokens."""
    return {"structured_outputs": {"choice": [text]}, **GREEDY}


async def say(model: ChatModel, *said: str, tools=(), max_tokens: int = 100, params=None) -> tuple[Finish, str]:
    chunks: list[TextChunk] = []
    messages = [user(each) for each in said or ("Say hi.",)]
    deadline = anyio.current_time() + 60
    request = MessageRequest("chat-0", messages, tools, max_tokens, deadline, params or GREEDY)
    finish = await model.sample_message(request, chunks.append)
    assert all(chunk.content or chunk.reasoning for chunk in chunks)
    return finish, "".join(chunk.content for chunk in chunks)


async def test_an_answer_is_streamed_and_given_whole(model) -> None:
    finish, streamed = await say(model, max_tokens=8)
    assert finish.message.role == "assistant"
    assert finish.message.content == streamed
    assert streamed
    assert finish.attempts is None
    assert model.usage.answers == 1
    assert model.usage.prompt_tokens > 1
    assert 0 < model.usage.completion_tokens <= 8


async def test_a_limit_cuts_the_answer(model, server) -> None:
    finish, _ = await say(model, max_tokens=3)
    assert finish.reason is FinishReason.LENGTH
    assert model.usage.completion_tokens == 3
    async with ChatModel(server.base_url, server.model, max_tokens=2) as short:
        finish, _ = await say(short)
        assert finish.reason is FinishReason.LENGTH
        assert short.usage.completion_tokens == 2


async def test_a_whole_reply_says_what_its_stream_says(model, server) -> None:
    finish, _ = await say(model, max_tokens=6)
    async with ChatModel(server.base_url, server.model, stream=False) as whole:
        other, _ = await say(
            whole, max_tokens=6, params={**GREEDY, "seed": 1}
        )  # which tells the two apart when replayed
        assert whole.usage == model.usage
    assert other == finish


async def test_a_stop_string_ends_the_answer(model, is_vllm) -> None:
    params = forced("Hello there.") if is_vllm else GREEDY
    whole, _ = await say(model, max_tokens=8, params=params)
    stop = whole.message.content[3:5]
    finish, _ = await say(model, max_tokens=8, params={**params, "stop": [stop]})
    assert finish.reason is FinishReason.STOP
    assert finish.message.content == whole.message.content.partition(stop)[0]


async def test_a_prompt_without_room_is_an_overflow(model) -> None:
    with pytest.raises(ContextOverflow):
        await say(model, "x " * 2200)


async def test_a_budget_beyond_any_window_is_no_obstacle(model) -> None:
    finish, _ = await say(model, max_tokens=10_000_000, params={**GREEDY, "stop": ["a", "e", "o", " "]})
    assert finish.reason in (FinishReason.STOP, FinishReason.LENGTH)


async def test_a_wrong_model_is_told_at_once_or_never(server, is_vllm) -> None:
    wrong = ChatModel(server.base_url, "nope")
    if is_vllm:
        with pytest.raises(ConfigError, match=f"serves {server.model!r}"):
            async with wrong:
                pass
    else:  # it answers to any name
        async with wrong as model:
            finish, _ = await say(model, max_tokens=2)
            assert finish.message.content


async def test_a_history_with_calls_and_answers_is_understood(model) -> None:
    messages = [
        ak.system("You compute."),
        user("1+1?"),
        ak.assistant("I will see.", ToolCall("a", "calc", {"e": "1+1"}), ToolCall("b", "calc", {"e": "é 😀\n"})),
        ak.Message("tool", "2", tool_call_id="a", name="calc"),
        ak.Message("tool", "?", tool_call_id="b", name="calc"),
    ]
    request = MessageRequest("chat-0", messages, (TOOL,), 3, anyio.current_time() + 60, GREEDY)
    finish = await model.sample_message(request, lambda chunk: None)
    assert finish.reason in (FinishReason.LENGTH, FinishReason.STOP)
    assert model.usage.prompt_tokens > 20


async def test_a_refused_param_is_an_error_that_says_what_the_server_said(model) -> None:
    with pytest.raises(ModelError, match=r"400|422") as caught:
        await say(model, params={"temperature": "warm"})
    assert not caught.value.retryable


# Calls can be forced upon vLLM alone.


@pytest.fixture
def forcing(model, is_vllm) -> ChatModel:
    if not is_vllm:
        pytest.skip("only vLLM can be made to call a tool whatever the model")
    return model


async def test_a_call_is_read(forcing) -> None:
    finish, text = await say(forcing, tools=(TOOL,), params=forced("Well.\n" + CALL))
    (found,) = finish.attempts
    assert (found.name, found.arguments) == ("calc", {"e": "1+1"})
    assert found.id
    assert text.strip() == "Well."
    assert finish.message.tool_calls == (found,)


async def test_several_calls_are_read_in_order(forcing) -> None:
    other = CALL.replace("1+1", 'é\\n😀 \\"')
    finish, _ = await say(forcing, tools=(TOOL,), max_tokens=200, params=forced(f"{CALL}\n{other}"))
    assert [found.arguments["e"] for found in finish.attempts] == ["1+1", 'é\n😀 "']
    assert len({found.id for found in finish.attempts}) == 2


@pytest.mark.parametrize("arguments", ['{"e": }', '{"e": Infinity}', '"text"', '{"e": "1", "e": "2"}', "[1]"])
async def test_a_malformed_call_is_a_fault(forcing, arguments) -> None:
    raw = CALL.replace('{"e": "1+1"}', arguments)
    finish, _ = await say(forcing, tools=(TOOL,), params=forced(raw))
    assert [type(found) for found in finish.attempts] == [ak.protocols.CallFault]


async def test_an_empty_call_that_the_server_swallows_is_a_fault(forcing) -> None:
    finish, _ = await say(forcing, tools=(TOOL,), params=forced("<tool_call>\n</tool_call>"))
    assert [type(found) for found in finish.attempts] == [ak.protocols.CallFault]


async def test_a_cut_call_does_not_run(forcing) -> None:
    long = CALL.replace("1+1", "1+1 and then a good deal more than there is room for in this answer")
    finish, _ = await say(forcing, tools=(TOOL,), max_tokens=30, params=forced(long))
    assert finish.reason is FinishReason.LENGTH
    assert [found.status for found in finish.attempts] == [FaultStatus.TRUNCATED]


async def test_a_rollout_calls_and_answers(forcing) -> None:
    agent = ak.Agent(forcing, tools=[calc], params=forced(CALL), budget=ak.Budget(max_turns=3))
    trajectory = await agent.run(ak.Task("t", [ak.system("You compute."), user("1+1?")]))
    assert trajectory.exit_reason is ExitReason.TURN_LIMIT
    assert [[each.content for each in turn.observations] for turn in trajectory.turns] == [["1+1 = 2"]] * 3


async def test_a_rollout_of_malformed_calls_ends_by_its_format_errors(forcing) -> None:
    params = forced(CALL.replace('"1+1"', ""))
    trajectory = await ak.Agent(forcing, tools=[calc], params=params).run("1+1?")
    assert trajectory.exit_reason is ExitReason.FORMAT_ERRORS
    assert {each.status for turn in trajectory.turns for each in turn.observations} == {ObservationStatus.FORMAT_ERROR}


async def test_leaving_an_answer_stops_the_server(server, model, is_vllm) -> None:
    if not server.is_real or not is_vllm:
        pytest.skip("a recording generates nothing that could be stopped; llama.cpp has no such counters")
    begun = anyio.Event()

    async def generate() -> None:
        request = MessageRequest("left", [user("Go on.")], (), 1900, anyio.current_time() + 60, {"ignore_eos": True})
        await model.sample_message(request, lambda chunk: begun.set())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(generate)
        with anyio.fail_after(30):
            await begun.wait()
        tasks.cancel_scope.cancel()
    with anyio.fail_after(5):
        while await running(server):
            await anyio.sleep(0.1)


async def running(server) -> float:
    async with aiohttp.ClientSession() as session, session.get(server.root_url + "/metrics") as reply:
        lines = (await reply.text()).splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running"))
