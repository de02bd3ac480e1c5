"""Scripted policies: token-exact, cut where a server would cut, and each rollout at its own place in the script."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError, ContextOverflow, ModelError
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.models.sampling import position_logprob
from agentkit.protocols import (
    Finish,
    FinishReason,
    HasRenderer,
    Message,
    MessageModel,
    MessageRequest,
    TextChunk,
    TokenChunk,
    TokenModel,
    TokenRequest,
    ToolCall,
    assistant,
    user,
)
from agentkit.tokens import byte_chatml

RENDERER = byte_chatml()
CONTROL = RENDERER.tokenizer.control
END = CONTROL["<|im_end|>"]
PROMPT = tuple(RENDERER.prompt([user("hello")], ()))
CALL = '<tool_call>\n{"name": "t", "arguments": {}}\n</tool_call>'


def request_for(
    prompt_ids: Sequence[int] = PROMPT, request_id: str = "r", max_tokens: int = 1000, stop_ids: Any = None
) -> TokenRequest:
    stops = RENDERER.stop_ids if stop_ids is None else stop_ids
    return TokenRequest(request_id, prompt_ids, len(prompt_ids), max_tokens, stops, float("inf"))


async def sampled(model: ScriptedModel, request: TokenRequest) -> tuple[list[int], list[float], Finish]:
    chunks: list[TokenChunk] = []
    finish = await model.sample_tokens(request, chunks.append)
    assert all(len(chunk.token_ids) == len(chunk.logprobs) > 0 for chunk in chunks)
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    return ids, [logprob for chunk in chunks for logprob in chunk.logprobs], finish


def scripted(script: Any, **options: Any) -> ScriptedModel:
    return ScriptedModel(script, renderer=RENDERER, **options)


async def test_a_text_is_sampled_with_its_control_tokens_and_the_stop_token():
    model = scripted([CALL])
    assert isinstance(model, TokenModel)
    assert isinstance(model, HasRenderer)
    ids, logprobs, finish = await sampled(model, request_for())
    assert RENDERER.tokenizer.decode(ids) == CALL + "<|im_end|>"
    assert ids[0] == CONTROL["<tool_call>"]
    assert ids[-1] == END
    assert CONTROL["</tool_call>"] in ids
    assert finish == Finish(FinishReason.STOP)
    assert all(-2 <= logprob <= -1 for logprob in logprobs)


async def test_the_default_renderer_and_parser_are_those_of_the_embedded_family():
    model = ScriptedModel(["hi"])
    assert model.renderer.stop_ids == RENDERER.stop_ids
    session = model.parser.begin(())
    session.feed(CALL)
    assert [attempt.name for attempt in session.finish(FinishReason.STOP).attempts] == ["t"]


async def test_each_rollout_plays_the_script_from_its_start():
    model = scripted(["one", "two"])
    said = []
    for request_id in ("a", "b", "a", "b"):
        ids, _, _ = await sampled(model, request_for(request_id=request_id))
        said.append(RENDERER.decode(ids))
    assert said == ["one", "one", "two", "two"]
    with pytest.raises(ModelError, match="the script has 2 turns, request 'a' asks for one more"):
        await sampled(model, request_for(request_id="a"))


async def test_a_function_reads_the_decoded_prompt():
    seen: list[str] = []

    def script(prompt_text: str) -> str:
        seen.append(prompt_text)
        return f"{len(seen)}"

    ids, _, _ = await sampled(scripted(script), request_for())
    assert seen == [RENDERER.tokenizer.decode(PROMPT)]
    assert "<|im_start|>user\nhello<|im_end|>" in seen[0]
    assert RENDERER.decode(ids) == "1"


async def test_the_token_limit_cuts_and_a_turn_that_just_fits_is_whole():
    whole, _, _ = await sampled(scripted(["some longer text"]), request_for())
    for limit in range(1, len(whole) + 2):
        ids, _, finish = await sampled(scripted(["some longer text"]), request_for(max_tokens=limit))
        assert ids == whole[:limit]
        assert finish.reason is (FinishReason.LENGTH if limit < len(whole) else FinishReason.STOP)
    with pytest.raises(ContextOverflow):
        await sampled(scripted(["x"]), request_for(max_tokens=0))


async def test_sampling_ends_at_the_first_stop_token_the_script_spells():
    ids, _, finish = await sampled(scripted(["a<|im_end|>b<|im_end|>"]), request_for())
    assert RENDERER.tokenizer.decode(ids) == "a<|im_end|>"
    assert finish.reason is FinishReason.STOP
    more = request_for(stop_ids=frozenset({CONTROL["</tool_call>"]}))
    ids, _, _ = await sampled(scripted([CALL + " and more"]), more)
    assert RENDERER.tokenizer.decode(ids) == CALL


async def test_without_a_stop_token_nothing_is_added():
    ids, _, finish = await sampled(scripted(["a"], append_stop=False), request_for())
    assert (RENDERER.tokenizer.decode(ids), finish.reason) == ("a", FinishReason.STOP)
    ids, _, finish = await sampled(scripted([""], append_stop=False), request_for())
    assert (ids, finish.reason) == ([], FinishReason.STOP)


@given(st.text(max_size=60) | st.just(CALL * 2), st.integers(1, 40), st.integers(0, 30))
def test_chunks_change_neither_ids_nor_logprobs(text, chunk_tokens, offset):
    prompt = PROMPT[:offset]

    async def both() -> tuple[Any, Any]:
        return (
            await sampled(scripted([text], chunk_tokens=chunk_tokens), request_for(prompt)),
            await sampled(scripted([text], chunk_tokens=1), request_for(prompt)),
        )

    chunked, single = anyio.run(both)
    assert chunked == single
    ids, logprobs, _ = chunked
    assert logprobs == [position_logprob(len(prompt) + index, token_id) for index, token_id in enumerate(ids)]


@given(st.integers(0, 10**6), st.lists(st.integers(0, 200_000), min_size=1, max_size=127))
def test_log_probabilities_tell_positions_apart_and_survive_float32(start, token_ids):
    logprobs = [position_logprob(start + index, token_id) for index, token_id in enumerate(token_ids)]
    assert len(set(logprobs)) == len(token_ids)
    assert all(-2 < logprob <= -1 for logprob in logprobs)
    assert array("f", logprobs).tolist() == logprobs


async def test_logprobs_and_versions_come_from_the_caller_where_given():
    versions = iter([3, 3, 4, 4, 4, 4, 4])
    model = scripted(
        ["abcdefgh"],
        chunk_tokens=1,
        policy_version=lambda: next(versions),
        logprob=lambda position, _: -float(position),
    )
    chunks: list[TokenChunk] = []
    await model.sample_tokens(request_for(PROMPT[:5]), chunks.append)
    assert [chunk.logprobs[0] for chunk in chunks] == [-5.0 - index for index in range(len(chunks))]
    assert [chunk.policy_version for chunk in chunks][:3] == [3, 3, 4]
    await scripted(["x"], policy_version=9).sample_tokens(request_for(), chunks.append)
    assert chunks[-1].policy_version == 9


async def test_time_passes_as_told_and_a_deadline_keeps_what_was_pushed():
    model = scripted(["word " * 40], chunk_tokens=1, token_s=1.0, first_token_s=10.0)
    chunks: list[TokenChunk] = []
    started = anyio.current_time()
    with anyio.move_on_after(15.5) as scope:
        await model.sample_tokens(request_for(), chunks.append)
    assert scope.cancelled_caught
    assert len(chunks) == 5
    assert anyio.current_time() - started == pytest.approx(15.5)


async def test_other_tasks_run_between_chunks():
    running = True
    seen = 0

    async def count() -> None:
        nonlocal seen
        while running:
            seen += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        await sampled(scripted(["word " * 40], chunk_tokens=1), request_for())
        running = False
    assert seen > 20


def test_a_script_that_cannot_work_is_refused():
    refused: list[Callable[[], object]] = [
        lambda: ScriptedModel("one text", renderer=RENDERER),
        lambda: scripted(["x"], chunk_tokens=0),
        lambda: ScriptedModel(["x"], renderer=NoTokenizer()),
        lambda: ScriptedMessageModel("one text"),
        lambda: ScriptedMessageModel(["x"], chunk_chars=0),
    ]
    for make in refused:
        with pytest.raises(ConfigError):
            make()


class NoTokenizer:
    stop_ids = RENDERER.stop_ids
    prompt = staticmethod(RENDERER.prompt)
    bridge = staticmethod(RENDERER.bridge)
    decode = staticmethod(RENDERER.decode)


def message_request(*messages: Message, request_id: str = "r", max_tokens: int = 100) -> MessageRequest:
    return MessageRequest(request_id, messages, (), max_tokens, float("inf"))


async def test_messages_are_pushed_in_pieces_and_returned_whole():
    call = ToolCall("c", "t", {})
    said = Message("assistant", "content " * 10, (call,), reasoning="thinking " * 10)
    model = ScriptedMessageModel([said, "text"], chunk_chars=7)
    assert isinstance(model, MessageModel)
    chunks: list[TextChunk] = []
    finish = await model.sample_message(message_request(user("x")), chunks.append)
    assert finish == Finish(FinishReason.STOP, said)
    assert "".join(chunk.content for chunk in chunks) == said.content
    assert "".join(chunk.reasoning for chunk in chunks) == said.reasoning
    assert len(chunks) == 12 + 13
    finish = await model.sample_message(message_request(user("x")), chunks.append)
    assert finish.message == assistant("text")
    with pytest.raises(ModelError, match="2 turns"):
        await model.sample_message(message_request(user("x")), chunks.append)
    with pytest.raises(ContextOverflow):
        await model.sample_message(message_request(user("x"), max_tokens=0), chunks.append)


async def test_a_message_function_reads_the_history():
    model = ScriptedMessageModel(lambda messages: f"{len(messages)} {messages[-1].content}")
    finish = await model.sample_message(message_request(user("a"), assistant("b"), user("c")), lambda chunk: None)
    assert finish.message == assistant("3 c")
    with pytest.raises(ModelError, match="role 'assistant', found 'user'"):
        await ScriptedMessageModel([user("x")]).sample_message(message_request(user("a")), lambda chunk: None)


async def test_a_message_takes_the_time_it_is_given():
    model = ScriptedMessageModel(["x" * 100], chunk_chars=10, chunk_s=1.0)
    chunks: list[TextChunk] = []
    with anyio.move_on_after(4.5):
        await model.sample_message(message_request(user("a")), chunks.append)
    assert len(chunks) == 4
