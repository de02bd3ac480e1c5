"""A chat answer is the same however it was sent: whole, in events, and those cut anywhere."""

import json
from pathlib import Path

import attrs
import pytest
from agentkit_openai.chat_answer import ANSWER_CHARS, Answer
from agentkit_openai.sse import SSEDecoder
from hypothesis import given
from hypothesis import strategies as st

from agentkit import ContextOverflow, ModelError
from agentkit.protocols import CallFault, FaultStatus, Finish, FinishReason, TextChunk, ToolCall, ToolSpec
from agentkit.testing.strategies import json_values, texts

RECORDED = Path(__file__).parent / "recorded"
CALC = ToolSpec("calc", "calc", {"type": "object", "properties": {"e": {"type": "string"}}, "required": ["e"]})
STOP = ToolSpec("stop", "stop", {"type": "object", "properties": {}})
TOOLS = (CALC, STOP)


def recorded(name: str) -> dict:
    """One recorded exchange: status, reply, and the events of the same answer streamed, where that was recorded too."""
    for path in RECORDED.glob("chat_answers_*.jsonl"):
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if entry["name"] == name:
                return entry
    raise LookupError(name)


def replied(reply: dict, tools=TOOLS) -> tuple[Finish, list[TextChunk]]:
    return streamed([reply], tools)


def streamed(events, tools=TOOLS) -> tuple[Finish, list[TextChunk]]:
    chunks: list[TextChunk] = []
    answer = Answer(chunks.append, tools, where="POST /chat")
    for event in events:
        answer.feed(event if isinstance(event, bytes) else json.dumps(event).encode())
    return answer.finish(), chunks


def without_ids(finish: Finish) -> Finish:
    """The finish with its calls numbered: two recordings of one answer have different random ids."""
    attempts = finish.attempts
    if attempts is not None:
        attempts = tuple(attrs.evolve(each, id=str(at)) for at, each in enumerate(attempts))
    calls = tuple(attrs.evolve(each, id="") for each in finish.message.tool_calls)
    return attrs.evolve(finish, attempts=attempts, message=attrs.evolve(finish.message, tool_calls=calls))


def as_sse(events, *, end: bytes = b"\n\n") -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + end for event in events) + b"data: [DONE]" + end


def delta(finish: str | None = None, **fields) -> dict:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def calls_delta(*calls: object, finish: str | None = None) -> dict:
    return delta(finish, tool_calls=list(calls))


def piece(arguments: object = None, **fields) -> dict:
    """One element of tool_calls; only what is given is in it."""
    function = {key: fields.pop(key) for key in ("name",) if key in fields}
    if arguments is not None:
        function["arguments"] = arguments
    return {**fields, "function": function}


def attempts(*events: dict, finish: str = "tool_calls", tools=TOOLS):
    found, _ = streamed([*events, delta(finish)], tools)
    return found.attempts


AGREE = (
    "one", "two", "arguments_string", "text_then_call", "infinity", "unclosed", "unknown_tool", "plain", "length",
    "empty_answer", "stop_string", "plain_call", "reasoning", "reasoning_tools",
)  # fmt: skip


@pytest.mark.parametrize("name", AGREE)
def test_recorded_streams_say_what_the_recorded_reply_says(name) -> None:
    entry = recorded(name)
    whole, _ = replied(entry["reply"])
    finish, chunks = streamed(entry["stream"][:-1])
    assert without_ids(finish) == without_ids(whole)
    assert "".join(chunk.content for chunk in chunks) == finish.message.content
    assert "".join(chunk.reasoning for chunk in chunks) == (finish.message.reasoning or "")


@pytest.mark.parametrize("name", ["bad_json", "no_arguments", "duplicate_keys", "cut_call", "named"])
def test_where_the_server_itself_says_two_things_neither_runs_a_guess(name) -> None:
    """It leaves a malformed call in the text of a reply, and streams it as a call; it merges repeated keys in one."""
    entry = recorded(name)
    finish, _ = streamed(entry["stream"][:-1])
    assert [type(each) for each in finish.attempts] == [CallFault]
    whole, _ = replied(entry["reply"])
    if name == "duplicate_keys":  # the server has dropped the first of them already: nobody can know
        assert whole.attempts == (ToolCall(whole.attempts[0].id, "calc", {"e": "2"}),)
    else:
        assert [type(each) for each in whole.attempts] == [CallFault]


def test_recorded_calls_are_read() -> None:
    finish, _ = replied(recorded("two")["reply"])
    assert [call.arguments for call in finish.attempts] == [{"e": "1+1"}, {"e": 'é\n😀 "'}]
    assert finish.message.tool_calls == finish.attempts
    finish, _ = replied(recorded("infinity")["reply"])
    assert finish.attempts[0].status is FaultStatus.INVALID_JSON
    assert "Infinity is no JSON value" in finish.attempts[0].reason
    finish, _ = replied(recorded("arguments_string")["reply"])
    assert finish.attempts[0].reason == "'arguments' must be a JSON object, found a text"
    finish, _ = streamed(recorded("cut_call")["stream"][:-1])
    assert (finish.reason, finish.attempts[0].status) == (FinishReason.LENGTH, FaultStatus.TRUNCATED)


@pytest.mark.parametrize("name", ["llama.cpp", "llama.cpp_tools", "llama.cpp_wrong_model", "transformers"])
def test_recorded_replies_of_other_servers_are_read(name) -> None:
    entry = recorded(name)
    finish, chunks = replied(entry["reply"])
    assert finish.message.content == entry["reply"]["choices"][0]["message"]["content"] == chunks[0].content
    assert finish.reason is (FinishReason.LENGTH if "wrong" in name else FinishReason.STOP)
    assert finish.attempts is None


@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same_answer(data) -> None:
    entry = recorded(data.draw(st.sampled_from([*AGREE, "bad_json", "cut_call"])))
    events = entry["stream"][:-1]
    expected = streamed(events)
    raw = b": keep-alive\n\n" + as_sse(events, end=data.draw(st.sampled_from([b"\n\n", b"\r\n\r\n"])))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=20)))
    decoder, found = SSEDecoder(), []
    for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        found += decoder.feed(raw[start:stop])
    assert found.pop() == b"[DONE]"
    assert streamed(found) == expected


# Generated answers, in the styles in which servers send them.


@st.composite
def generated(draw) -> dict:
    """A reply with text, reasoning and calls whose arguments may be anything."""
    good = st.dictionaries(texts(4), st.integers() | texts(4), max_size=2).map(json.dumps)
    arguments = good | st.sampled_from(
        ["Infinity", "", "[]", '"x"', '{"a": 1', '{"a": 1, "a": 2}', "null", "{} {}", '{"e": NaN}', "{'a': 1}"]
    ) | texts(6)  # fmt: skip
    calls = [
        {
            "id": f"id{at}",
            "type": "function",
            "function": {"name": draw(st.sampled_from(["calc", "stop", "nope"])), "arguments": draw(arguments)},
        }
        for at in range(draw(st.integers(0, 3)))
    ]
    reasoning = draw(st.sampled_from(["reasoning", "reasoning_content"]))
    message = {"role": "assistant", "content": draw(texts(20)) or None, reasoning: draw(st.none() | texts(20))}
    if calls:
        message["tool_calls"] = calls
    reason = draw(st.sampled_from(["stop", "tool_calls", "length"]))
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "usage": usage}


def cut(draw, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


STYLES = ("indexed", "by id", "repeated id", "name in each", "whole", "whole without index", "index 0")


def as_stream(draw, reply: dict) -> list[dict]:
    """The events in which some server would have streamed `reply`."""
    choice = reply["choices"][0]
    message = choice["message"]
    events = [delta(role="assistant", content="")]
    for key in ("reasoning", "reasoning_content", "content"):
        for part in cut(draw, message.get(key) or ""):
            fields = {key: part}
            if key == "reasoning" and draw(st.booleans()):
                fields["reasoning_content"] = part  # both names, the same text
            events.append(delta(**fields))
            if draw(st.booleans()):
                events.append({"choices": []})
    style = draw(st.sampled_from(STYLES))
    for at, call in enumerate(message.get("tool_calls", ())):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if style == "whole":
            events.append(calls_delta({**call, "index": at}))
            continue
        if style in ("whole without index", "index 0"):
            events.append(calls_delta({**call, **({"index": 0} if style == "index 0" else {})}))
            continue
        where = {"index": at} if style in ("indexed", "name in each", "repeated id") else {}
        head = {"id": call["id"], "type": "function"}
        pieces = cut(draw, arguments)
        if style == "indexed":  # the name in two pieces, and an event for it alone
            first, second = name[:2], name[2:]
            events.append(calls_delta(piece("", **where, **head, name=first)))
            events.append(calls_delta(piece(**where, name=second)))
            events += [calls_delta(piece(part, **where)) for part in pieces]
        elif style == "name in each":
            events += [calls_delta(piece(part, **where, id=call["id"], name=name)) for part in ["", *pieces]]
        else:
            events.append(calls_delta(piece(**where, **head, name=name)))
            repeated = {"id": call["id"]} if style in ("repeated id", "by id") else {}
            events += [calls_delta(piece(part, **where, **repeated)) for part in pieces]
    events.append(delta(choice["finish_reason"]))
    if draw(st.booleans()):
        events.append({"choices": [], "usage": reply["usage"]})
    return events


@given(generated(), st.data())
def test_a_generated_stream_says_what_its_reply_says(reply, data) -> None:
    events = as_stream(data.draw, reply)
    whole, _ = replied(reply)
    finish, chunks = streamed(events)
    assert finish == whole
    assert "".join(chunk.content for chunk in chunks) == finish.message.content
    assert all(chunk.content or chunk.reasoning for chunk in chunks)


def expected_call(call: dict) -> dict | None:
    """The obvious oracle: the arguments of a call that may run."""
    text = call["function"]["arguments"]
    if not text.strip():
        return {} if call["function"]["name"] == "stop" else None

    def unique(pairs):
        if len(dict(pairs)) < len(pairs):
            raise ValueError("repeated key")
        return dict(pairs)

    def refuse(name):
        raise ValueError(name)

    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()  # no half of a surrogate pair
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


@given(generated())
def test_calls_run_exactly_where_their_arguments_are_one_object(reply) -> None:
    choice = reply["choices"][0]
    calls = choice["message"].get("tool_calls", ())
    finish, _ = replied(reply)
    expected = [expected_call(call) for call in calls]
    if expected and choice["finish_reason"] == "length":
        expected[-1] = None
    found = [each.arguments if isinstance(each, ToolCall) else None for each in finish.attempts or ()]
    if calls:
        assert found == expected
        assert [each.id for each in finish.attempts] == [call["id"] for call in calls]
    elif choice["finish_reason"] == "tool_calls":
        assert [each.status for each in finish.attempts] == [FaultStatus.MALFORMED]


@st.composite
def hostile(draw) -> list[object]:
    """Events with anything at any place where the client looks."""
    junk = json_values()
    call = st.fixed_dictionaries(
        {},
        optional={
            "index": st.sampled_from([0, 1, -1, True, "0", 1.5, 10**30, None]) | junk,
            "id": st.sampled_from(["a", "b", "", None]) | junk,
            "type": st.sampled_from(["function", "custom", None]) | junk,
            "function": junk
            | st.fixed_dictionaries(
                {},
                optional={
                    "name": st.sampled_from(["calc", "", None]) | junk,
                    "arguments": st.sampled_from(["{}", '{"a":', "}", {"a": 1}, {}]) | junk,
                },
            ),
        },
    )
    fields = st.fixed_dictionaries(
        {},
        optional={
            "content": texts() | junk | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": junk})),
            "reasoning": texts() | junk,
            "reasoning_content": texts() | junk,
            "refusal": texts() | junk,
            "tool_calls": junk | st.lists(call | junk, max_size=4),
            "function_call": junk | call,
        },
    )
    choice = st.fixed_dictionaries(
        {},
        optional={
            "index": st.sampled_from([0, 0, None, 1]) | junk,
            "delta": fields | junk,
            "message": fields | junk,
            "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "weird", None]) | junk,
        },
    )
    event = st.fixed_dictionaries({}, optional={"choices": st.lists(choice | junk, max_size=2) | junk, "usage": junk})
    return draw(st.lists(event | junk, max_size=5))


@given(hostile())
def test_a_hostile_stream_is_an_answer_or_a_model_error(events) -> None:
    try:
        finish, _ = streamed(events)
    except ModelError:
        return
    assert finish.message.role == "assistant"
    for attempt in finish.attempts or ():
        if isinstance(attempt, ToolCall):
            json.dumps(dict(attempt.arguments), allow_nan=False, ensure_ascii=False).encode()


@given(st.binary(max_size=30))
def test_an_event_that_is_no_json_is_a_model_error(event) -> None:
    answer = Answer(lambda chunk: None)
    try:
        answer.feed(event)
    except ModelError:
        return
    assert isinstance(json.loads(event), dict)


def test_pieces_find_their_call() -> None:
    def ids(found):
        return [(each.id, each.name, getattr(each, "arguments", None)) for each in found]

    # every call has the index 0, and an id of its own
    found = attempts(
        calls_delta(piece('{"e": "1"}', index=0, id="a", name="calc")),
        calls_delta(piece('{"e": "2"}', index=0, id="b", name="calc")),
    )
    assert ids(found) == [("a", "calc", {"e": "1"}), ("b", "calc", {"e": "2"})]
    # neither index nor id, whole
    found = attempts(calls_delta(piece('{"e": "1"}', name="calc"), piece('{"e": "1"}', name="calc")))
    assert ids(found) == [("", "calc", {"e": "1"})] * 2
    # neither index nor id, in pieces
    found = attempts(
        calls_delta(piece(name="calc")),
        calls_delta(piece('{"e": ')),
        calls_delta(piece('"1"}')),
        calls_delta(piece("", name="stop")),
        calls_delta(piece("{}")),
    )
    assert ids(found) == [("", "calc", {"e": "1"}), ("", "stop", {})]
    # two calls side by side
    found = attempts(
        calls_delta(piece("{", index=0, id="a", name="calc"), piece("{", index=1, id="b", name="stop")),
        calls_delta(piece('"e": "1"', index=0), piece("}", index=1)),
        calls_delta(piece("}", index=0)),
    )
    assert ids(found) == [("a", "calc", {"e": "1"}), ("b", "stop", {})]
    # the id comes late, or changes with every piece
    found = attempts(calls_delta(piece("{", index=0, name="stop")), calls_delta(piece("}", index=0, id="late")))
    assert ids(found) == [("late", "stop", {})]
    found = attempts(calls_delta(piece("{", index=0, id="a", name="stop")), calls_delta(piece("}", index=0, id="b")))
    assert ids(found) == [("a", "stop", {})]
    # the name and the id come with every piece, and the first is an object by itself
    found = attempts(*[calls_delta(piece(part, index=0, id="a", name="stop")) for part in ("{}", " {}")])
    assert [(each.status, each.raw) for each in found] == [(FaultStatus.INVALID_JSON, "{} {}")]
    # the old shape
    found = attempts(delta(function_call={"name": "stop", "arguments": "{"}), delta(function_call={"arguments": "}"}))
    assert ids(found) == [("", "stop", {})]


def test_a_name_is_whole_however_it_came() -> None:
    def name(*names: str) -> str:
        (found,) = attempts(*[calls_delta(piece("", index=0, name=each)) for each in names], calls_delta(piece("{}")))
        return found.name

    assert name("calc") == name("ca", "lc") == name("calc", "calc") == name("calc", "") == "calc"
    two = (ToolSpec("aa", "", {}), ToolSpec("calc", "", {}))
    found = attempts(calls_delta(piece(index=0, name="a")), calls_delta(piece("{}", index=0, name="a")), tools=two)
    assert [each.name for each in found] == ["aa"]


def test_arguments_that_come_as_an_object_are_read_as_strictly() -> None:
    assert attempts(calls_delta(piece({"e": "1"}, name="calc"))) == (ToolCall("", "calc", {"e": "1"}),)
    event = b'{"choices": [{"delta": {"tool_calls": [{"function": {"name": "calc", "arguments": {"e": %s}}}]}}]}'
    for value, reason in ((b'1, "e": 2', "duplicate key 'e'"), (b"NaN", "NaN is no JSON value")):
        finish, _ = streamed([event % value, delta("stop")])
        (fault,) = finish.attempts
        assert (fault.status, fault.name) == (FaultStatus.MALFORMED, "calc")
        assert reason in fault.reason
    both = attempts(calls_delta(piece("{", index=0, name="calc")), calls_delta(piece({"e": "1"}, index=0)))
    assert [each.status for each in both] == [FaultStatus.MALFORMED]


@pytest.mark.parametrize(
    ("call", "status", "reason"),
    [
        ("text", "malformed", "a tool call must be an object, found a text"),
        ({"type": "custom", "custom": {"name": "calc"}}, "malformed", "of type 'function', found 'custom'"),
        (piece("{}"), "missing_name", "missing 'name'"),
        (piece("{}", name=7), "malformed", "the name of a tool must be a text, found a number"),
        (piece([1], name="calc"), "malformed", "'arguments' must be a JSON object, found a list"),
        (piece("", name="calc"), "invalid_json", "the arguments of the tool call are empty"),
        (piece(name="calc"), "invalid_json", "the arguments of the tool call are empty"),
        (piece(name="nope"), "invalid_json", "the arguments of the tool call are empty"),
    ],
)
def test_what_is_no_call_is_a_fault_with_a_reason(call, status, reason) -> None:
    (fault,) = attempts(calls_delta(call))
    assert fault.status == status
    assert reason in fault.reason


def test_a_tool_without_parameters_may_be_called_without_arguments() -> None:
    assert attempts(calls_delta(piece("", name="stop", id="a"))) == (ToolCall("a", "stop"),)


@pytest.mark.parametrize(
    ("said", "expected"),
    [("stop", "stop"), ("tool_calls", "stop"), ("function_call", "stop"), ("length", "length"), ("abort", "aborted")],
)
def test_finish_reasons_are_mapped(said, expected) -> None:
    finish, _ = streamed([delta(content="Hello."), delta(said)], ())
    assert (finish.reason, finish.message.content) == (expected, "Hello.")


def test_the_last_call_of_a_cut_answer_never_runs() -> None:
    whole = calls_delta(piece("{}", index=0, id="a", name="stop"), piece("{}", index=1, id="b", name="stop"))
    first, last = attempts(whole, finish="length")
    assert first == ToolCall("a", "stop", {})
    assert (last.status, last.id, last.name, last.raw) == (FaultStatus.TRUNCATED, "b", "stop", "{}")


def test_a_call_that_was_announced_and_not_sent_is_no_end() -> None:
    finish, _ = streamed([delta(content="I will call."), delta("tool_calls")])
    assert [each.status for each in finish.attempts] == [FaultStatus.MALFORMED]


def test_a_call_that_the_server_swallowed_is_no_end() -> None:
    events = recorded("empty")["stream"][:-1]  # the reply holds it as text
    finish, _ = streamed(events)
    assert [each.status for each in finish.attempts] == [FaultStatus.MALFORMED]
    assert [type(each) for each in replied(recorded("empty")["reply"])[0].attempts] == [CallFault]
    assert streamed(events, ())[0].attempts is None
    assert streamed(recorded("empty_answer")["stream"][:-1])[0].attempts is None
    for event in events:
        for choice in event["choices"]:
            if "stop_reason" in choice:
                choice["stop_reason"] = "a stop string"
    assert streamed(events)[0].attempts is None


def test_a_call_left_in_the_text_is_a_fault_only_where_there_are_tools() -> None:
    raw = 'So:\n<tool_call>\n{"name": "calc", "arguments": {"e": "1"}}\n</tool_call>'
    finish, _ = streamed([delta(content=raw), delta("stop")])
    assert [(each.status, each.name) for each in finish.attempts] == [(FaultStatus.MALFORMED, "calc")]
    assert finish.message.content == raw
    assert finish.message.tool_calls == ()
    finish, _ = streamed([delta(content=raw), delta("stop")], ())
    assert finish.attempts is None
    finish, _ = streamed([delta(content="Write <tool_call> before a call."), delta("stop")])
    assert finish.attempts is None
    xml = "<tool_call>\n<function=calc>\n<parameter=e>\n1\n</parameter>\n</function>\n</tool_call>"
    finish, _ = streamed([delta(content=xml), delta("stop")])
    assert [(each.status, each.name) for each in finish.attempts] == [(FaultStatus.MALFORMED, "calc")]


def test_shapes_of_content() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "thinking", "thinking": [{"type": "text", "text": "t"}]}, "b"]
    finish, chunks = streamed([delta(content=parts), delta(refusal="I will not."), delta("stop")], ())
    assert (finish.message.content, finish.message.reasoning) == ("abI will not.", "t")
    assert chunks == [TextChunk("ab", "t"), TextChunk("I will not.")]


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([], "the stream ended before the answer did"),
        ([delta(content="x")], "the stream ended before the answer did"),
        ([delta("content_filter", content="x")], "content filter"),
        ([delta("error")], "failed in the middle"),
        ([b"{"], "must be JSON"),
        ([b"[]"], "must be an object"),
        ([{"choices": "x"}], "choices of the answer must be a list of objects"),
        ([{"choices": [{"index": 1, "delta": {}}]}], "several answers"),
        ([{"choices": [{}, {}]}], "several answers"),
        ([delta(content=3)], "content of the answer must be a text"),
        ([delta(reasoning={"a": 1})], "reasoning of the answer must be a text"),
        ([delta(tool_calls={"a": 1})], "tool_calls of the answer must be a list"),
        ([{"error": {"message": "out of memory", "code": 500}}], "out of memory"),
    ],
)
def test_a_broken_answer_is_a_model_error_that_says_where(events, said) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        streamed(events)
    assert str(caught.value).startswith("POST /chat")


def test_only_what_may_pass_is_worth_another_try() -> None:
    for events, retryable in (([], True), ([delta("error")], True), ([delta("content_filter")], False)):
        with pytest.raises(ModelError) as caught:
            streamed(events)
        assert caught.value.retryable is retryable


def test_an_overflow_inside_the_stream_is_an_overflow() -> None:
    with pytest.raises(ContextOverflow):
        streamed([delta(content=""), recorded("overflow")["reply"]])


def test_several_choices_as_recorded_are_refused() -> None:
    with pytest.raises(ModelError, match="leave n out of params"):
        streamed(recorded("two_choices")["stream"][:-1])


def test_secrets_and_controls_stay_out_of_messages() -> None:
    answer = Answer(lambda chunk: None, where="POST /chat", secrets=("sk-secret",))
    with pytest.raises(ModelError) as caught:
        answer.feed(json.dumps({"error": {"message": "bad key sk-secret\x1b[31m"}}).encode())
    assert "sk-secret" not in str(caught.value)
    assert "\x1b" not in str(caught.value)
    answer = Answer(lambda chunk: None, where="POST /chat", secrets=("sk-secret",))
    with pytest.raises(ModelError) as caught:
        answer.feed(json.dumps(delta(content={"sk-secret": 1})).encode())
    assert "sk-secret" not in str(caught.value)


def test_an_endless_answer_is_refused() -> None:
    answer = Answer(lambda chunk: None)
    event = json.dumps(delta(content="x" * (ANSWER_CHARS // 4))).encode()
    for _ in range(4):
        answer.feed(event)
    with pytest.raises(ModelError, match="longer than"):
        answer.feed(event)
    answer = Answer(lambda chunk: None)
    event = json.dumps(calls_delta(*[7] * 1000)).encode()
    for _ in range(ANSWER_CHARS // 64_000):
        answer.feed(event)
    with pytest.raises(ModelError, match="longer than"):
        answer.feed(event)


def test_a_character_in_two_halves_is_put_together() -> None:
    high, low = "\ud83d", "\ude00"
    whole = [calls_delta(piece('{"e": "' + high, index=0, name="calc")), calls_delta(piece(low + '"}', index=0))]
    halves = [delta(content="a" + high), delta(reasoning=high), delta(content=low, reasoning=low + "b")]
    finish, chunks = streamed([*halves, *whole, delta("stop")])
    assert (finish.message.content, finish.message.reasoning) == ("a😀", "😀b")
    assert finish.attempts == (ToolCall("", "calc", {"e": "😀"}),)
    assert [(chunk.content, chunk.reasoning) for chunk in chunks] == [("a", ""), ("😀", "😀b")]
    finish, chunks = streamed([delta(content=high), delta("stop")])
    assert finish.message.content == high == "".join(chunk.content for chunk in chunks)


def test_usage_is_kept_wherever_it_comes() -> None:
    answer = Answer(lambda chunk: None)
    answer.feed(json.dumps({"choices": [], "usage": {"prompt_tokens": 3}}).encode())
    answer.feed(json.dumps({**delta("stop"), "usage": None}).encode())
    assert answer.usage == {"prompt_tokens": 3}
    assert not answer.emitted


@pytest.mark.parametrize("empty", [{"delta": {}}, {"delta": None}, {}])
def test_a_stream_that_ends_with_the_whole_message_says_it_once(empty) -> None:
    whole = {"message": {"role": "assistant", "content": "hello", "tool_calls": None}, "finish_reason": "stop"}
    finish, chunks = streamed([delta(content="hel"), delta(content="lo"), {"choices": [whole | empty]}])
    assert finish.message is not None
    assert finish.message.content == "hello" == "".join(chunk.content for chunk in chunks)
    alone, _ = streamed([{"choices": [whole | empty]}])
    assert alone.message == finish.message
