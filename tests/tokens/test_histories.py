"""Which history a request goes on with, against a list that is searched from end to end."""

import json
import math
from typing import Any

import pytest
from attrs import evolve
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.protocols import Message, ToolCall, ToolSpec, assistant, image, system, user
from agentkit.tokens import Found, Histories

PNG = b"\x89PNG\r\n\x1a\n"


def call(arguments: dict[str, Any], call_id: str = "a", name: str = "f") -> Message:
    return assistant("", ToolCall(call_id, name, arguments))


def answer(content: str, call_id: str = "a", name: str | None = None) -> Message:
    return Message("tool", content, tool_call_id=call_id, name=name)


TURNS = [
    user("a"),
    user("b"),
    system("a"),
    assistant("a"),
    Message("assistant", "a", reasoning="hm"),
    Message("assistant", "a", reasoning="oh"),
    call({"x": 1}),
    call({"x": 1}, "b"),
    call({"x": 2}),
    answer("r"),
    answer("r", "b"),
]
NOTES = st.tuples(
    st.sampled_from(["note", "find"]),
    st.lists(st.sampled_from(TURNS), max_size=5),
    st.integers(0, 1),
    st.integers(0, 1),
)
TOOLS = [(), (ToolSpec("f", "d", {"type": "object"}),)]
OPTIONS = [{}, {"thinking": True}]


def spelled(messages: list[Message], *, reasoning: bool) -> list[Any]:
    """The messages with ids by number; slow and plain."""
    numbers: dict[str | None, Any] = {}
    out, count = list[Any](), 0
    for message in messages:
        answers = numbers.get(message.tool_call_id, message.tool_call_id)
        for each in message.tool_calls:
            numbers[each.id] = ("call", count)
            count += 1
        calls = [(each.name, json.dumps(each.arguments, sort_keys=True)) for each in message.tool_calls]
        out.append((message.role, message.content, calls, answers, message.reasoning if reasoning else None))
    return out


def same(noted: list[Message], asked: list[Message]) -> bool:
    thoughts = all(new.reasoning in (None, old.reasoning) for old, new in zip(noted, asked, strict=True))
    return thoughts and spelled(noted, reasoning=False) == spelled(asked, reasoning=False)


@given(st.lists(NOTES, max_size=25))
@example(
    [
        ("note", [user("a"), Message("assistant", "a", reasoning="hm")], 0, 0),
        ("note", [user("a"), Message("assistant", "a", reasoning="oh")], 0, 0),
        ("find", [user("a"), assistant("a"), user("b")], 0, 0),
        ("note", [user("a"), Message("assistant", "a", reasoning="hm")], 0, 0),
    ]
)
def test_the_deepest_match_wins_and_of_several_the_newest(moves: list[tuple[str, list[Message], int, int]]) -> None:
    histories: Histories[int] = Histories()
    noted: list[tuple[list[Message], int, int, int]] = []
    for value, (what, messages, tools, options) in enumerate(moves):
        setting: dict[str, Any] = {"tools": TOOLS[tools], "options": OPTIONS[options]}
        if what == "note":
            histories.note(messages, value, **setting)
            noted.append((messages, tools, options, value))
        expected = None
        for old, old_tools, old_options, old_value in noted:
            matches = (old_tools, old_options) == (tools, options) and len(old) <= len(messages)
            if matches and same(old, messages[: len(old)]) and (expected is None or len(old) >= expected.depth):
                expected = Found(old_value, len(old))
        assert histories.find(messages, **setting) == expected


@pytest.mark.parametrize(
    ("noted", "asked"),
    [
        (call({"x": 1, "y": [True, "é"]}), call({"y": [True, "\u00e9"], "x": 1.0})),
        (call({"x": {"b": 1, "a": 2}}), call({"x": {"a": 2, "b": 1}})),
        (call({"x": (1, 2)}), call({"x": [1, 2]})),
        (call({}, "id of the server"), call({}, "call_0")),
        (Message("assistant", "a", reasoning="long"), assistant("a")),
        (Message("assistant", "a", reasoning=""), assistant("a")),
        (user(image(PNG), "what?"), user(image(bytes(PNG)), "what?")),
    ],
)
def test_what_counts_as_the_same(noted: Message, asked: Message) -> None:
    histories: Histories[str] = Histories()
    histories.note([user("q"), noted], "it")
    assert histories.find([user("q"), asked, user("more")]) == Found("it", 2)


@pytest.mark.parametrize(
    ("noted", "asked"),
    [
        (call({"x": 1}), call({"x": True})),
        (call({"x": 1}), call({"x": "1"})),
        (call({"x": 1}), call({"x": 1.5})),
        (call({"x": None}), call({})),
        (call({"x": [1, 2]}), call({"x": [2, 1]})),
        (call({}), call({}, name="g")),
        (assistant("a"), assistant("a ")),
        (assistant("a"), user("a")),
        (assistant("a"), Message("assistant", "a", reasoning="made up")),
        (Message("assistant", "a", reasoning="one"), Message("assistant", "a", reasoning="other")),
        (user("\ud83d\ude00"), user("😀")),
        (Message("user", "a", name="ann"), Message("user", "a", name="bob")),
        (user(image(PNG), "what?"), user("what?")),
        (user(image(PNG), "what?"), user(image(PNG + b"\x00"), "what?")),
        (user(image(PNG), "what?"), user("what?", image(PNG))),
        (answer("r", "nowhere"), answer("r", "elsewhere")),
    ],
)
def test_what_counts_as_another(noted: Message, asked: Message) -> None:
    histories: Histories[str] = Histories()
    histories.note([user("q")], "shallow")
    histories.note([user("q"), noted], "it")
    assert histories.find([user("q"), asked, user("more")]) == Found("shallow", 1)


def test_ids_count_for_which_call_an_answer_belongs_to() -> None:
    histories: Histories[str] = Histories()
    both = assistant("", ToolCall("a", "f"), ToolCall("b", "f"))
    histories.note([user("q"), both, answer("r", "a", "f"), answer("s", "b", "f")], "it")
    renamed = assistant("", ToolCall("1", "f"), ToolCall("2", "f"))
    assert histories.find([user("q"), renamed, answer("r", "1"), answer("s", "2")]) == Found("it", 4)
    assert histories.find([user("q"), renamed, answer("r", "2"), answer("s", "1")]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"tools": ()},
        {"tools": (ToolSpec("f", "d", {"type": "object"}), ToolSpec("g", "d", {}))},
        {"tools": (ToolSpec("f", "other", {"type": "object"}),)},
        {"tools": (ToolSpec("f", "d", {"type": "object", "required": []}),)},
        {"options": {"thinking": False}},
        {"options": {}},
    ],
)
def test_other_tools_or_options_are_another_history(change: dict[str, Any]) -> None:
    histories: Histories[str] = Histories()
    setting: dict[str, Any] = {"tools": TOOLS[1], "options": {"thinking": True}}
    histories.note([user("q")], "it", **setting)
    assert histories.find([user("q")], **setting) == Found("it", 1)
    assert histories.find([user("q")], **(setting | {"tools": (evolve(TOOLS[1][0], parallel=True),)})) is not None
    assert histories.find([user("q")], **(setting | change)) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(json_values, json_values)
@example(2**53 + 1, float(2**53))
@example({"a": math.nan}, {"a": math.nan})
@example(10**400, 1.0)
@example(-0.0, 0)
def test_arguments_are_compared_as_json_values(one: Any, other: Any) -> None:
    """Through JSON text and back is the same; and what Python holds for equal is, but for `True == 1`."""
    histories: Histories[str] = Histories()
    histories.note([call({"x": one})], "it")
    assert histories.find([call(json.loads(json.dumps({"x": one})))]) == Found("it", 1)
    if json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True):
        assert histories.find([call({"x": other})]) == Found("it", 1)
    elif one != other:
        assert histories.find([call({"x": other})]) is None
