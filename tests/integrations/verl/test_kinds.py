"""Every sampled token has one kind, and it is the kind of the character it starts with."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import pytest
from agentkit_verl.kinds import KINDS, kinds_of
from agentkit_verl.rows import KindSpan
from attrs import evolve
from hypothesis import assume, example, given
from hypothesis import strategies as st

from agentkit.parsing import HermesParser, Qwen3CoderParser, parse
from agentkit.protocols import Action, FinishReason, ToolCall, ToolParser, ToolSpec

PARSERS: dict[str, Callable[..., ToolParser]] = {"hermes": HermesParser, "qwen3_coder": Qwen3CoderParser}
both = pytest.mark.parametrize("family", sorted(PARSERS))
TOOLS = (
    ToolSpec("bash", "", {"type": "object", "properties": {"command": {"type": "string"}, "n": {"type": "integer"}}}),
    ToolSpec(
        "write_file",
        "",
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "tags": {"type": "array"}},
        },
    ),
    ToolSpec("now", "", {"type": "object", "properties": {}}),
)

Labelled = list[tuple[str, str]]
"""Pieces of text, and the kind of each."""


def read(family: str, text: str, *, lenient: bool = False, finish: FinishReason = FinishReason.STOP) -> Action:
    found = parse(PARSERS[family](lenient=lenient), text, TOOLS, finish)
    return Action(text, found.content, found.reasoning, found.attempts, finish)


def by_characters(pieces: Sequence[str], labels: Sequence[str]) -> list[str]:
    """The oracle: a token is what the character at its place is; `text` past the end."""
    starts = [0, *accumulate(map(len, pieces))]
    return [labels[start] if start < len(labels) else "text" for start in starts[: len(pieces)]]


def spread(spans: Sequence[KindSpan]) -> list[str]:
    return [span.kind for span in spans for _ in range(span.start, span.stop)]


def texts(labelled: Labelled) -> str:
    return "".join(text for text, _ in labelled)


def labels_of(labelled: Labelled) -> list[str]:
    return [kind for text, kind in labelled for _ in text]


@st.composite
def tokenizations(draw: st.DrawFn, text: str) -> list[str]:
    """`text` in pieces of random length, some of them empty."""
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=40)))
    bounds = [0, *cuts, len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


QUOTED = [
    "</tool_call>", "<tool_call>", "</function>", "</think>", "<think>", "a > b", "\n", '"', "\\", "{", "}}", "'", "é",
    "\U0001f600", "<parameter=path>", '"arguments": {"x": 1}', "ls -l", "\n<parameter=path>\nx\n</parameter>\n",
    "\n<parameter=path>\nx\n</parameter>\n<parameter=n>\n1\n</parameter>\n",
]  # fmt: skip
quoting = st.lists(st.sampled_from(QUOTED) | st.text("ab \n", max_size=4), max_size=4).map(" w ".join)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | quoting,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab<\"'", max_size=3), inner, max_size=2),
    max_leaves=4,
)
calls = st.one_of(
    st.tuples(st.just("bash"), st.fixed_dictionaries({}, optional={"command": quoting, "n": st.integers()})),
    st.tuples(
        st.just("write_file"),
        st.fixed_dictionaries(
            {}, optional={"path": quoting, "content": quoting, "tags": st.lists(anything, max_size=2)}
        ),
    ),
    st.tuples(st.just("now"), st.just({})),
)
prose = st.text("ab .\n", max_size=8)
newlines = st.sampled_from(["", "\n", "\n\n"])


@st.composite
def hermes_call(draw: st.DrawFn, name: str, arguments: Mapping[str, Any]) -> Labelled:
    dumped = json.dumps(
        arguments, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])), sort_keys=False
    )
    blank = draw(st.sampled_from(["", " ", "\n"]))
    members: list[Labelled] = [
        [(f'"name"{blank}:{blank}{json.dumps(name)}', "call")],
        [(f'"arguments"{blank}:{blank}', "call"), (dumped, "arguments")],
    ]
    if draw(st.booleans()):
        members.reverse()
    first, second = members
    opening, closing = draw(newlines), draw(newlines)
    return [
        (f"<tool_call>{opening}{{{blank}", "call"), *first, (f"{blank},{blank}", "call"), *second,
        (f"{blank}}}{closing}</tool_call>", "call"),
    ]  # fmt: skip


@st.composite
def qwen3_coder_call(draw: st.DrawFn, name: str, arguments: Mapping[str, Any]) -> Labelled:
    labelled: Labelled = [(f"<tool_call>\n<function={name}>\n", "call")]
    for key, value in arguments.items():
        written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        framed = "" if isinstance(value, str) and draw(st.booleans()) and not value.startswith("\n") else "\n"
        if isinstance(value, str) and value.endswith("\n"):
            framed = "\n"
        labelled += [(f"<parameter={key}>{framed}", "call"), (written, "arguments")]
        labelled.append((f"{framed}</parameter>\n", "call"))
    return [*labelled, ("</function>\n</tool_call>", "call")]


RENDERERS: dict[str, Callable[..., st.SearchStrategy[Labelled]]] = {
    "hermes": hermes_call,
    "qwen3_coder": qwen3_coder_call,
}


@st.composite
def turns(draw: st.DrawFn, family: str) -> tuple[Labelled, str | None, list[tuple[str, Any]]]:
    """A generation as a template writes it, with what its parser should find."""
    labelled: Labelled = []
    reasoning = None
    opened = draw(st.sampled_from(["", "<think>", "\n<think>\n", None]))
    if opened is not None:
        thought = draw(prose | quoting)
        labelled.append((f"{opened}{thought}</think>", "reasoning"))
        reasoning = f"{opened.lstrip().removeprefix('<think>')}{thought}".strip("\n")
        labelled.append((draw(newlines), "text"))
    labelled.append((draw(prose), "text"))
    written = draw(st.lists(calls, max_size=3))
    for call in written:
        labelled += draw(RENDERERS[family](*call))
        labelled.append((draw(newlines), "text"))
    return labelled, reasoning, [(name, dict(arguments)) for name, arguments in written]


@both
@given(data=st.data(), extra=st.lists(st.sampled_from(["", "<|im_end|>", "\n"]), max_size=2))
def test_kinds_are_those_of_the_first_characters(family: str, data: st.DataObject, extra: list[str]) -> None:
    labelled, reasoning, written = data.draw(turns(family))
    text = texts(labelled)
    action = read(family, text)
    found = [(call.name, dict(call.arguments)) for call in action.calls]
    assume(action.reasoning == reasoning and found == written and not action.faults)  # formats without escapes
    pieces = [*data.draw(tokenizations(text)), *extra]
    spans = kinds_of(pieces, action)
    assert spread(spans) == by_characters(pieces, labels_of(labelled))


def test_most_generated_turns_are_unambiguous() -> None:
    """What the test above assumes must hold often, or it tests nothing."""
    seen: dict[str, list[bool]] = {family: [] for family in PARSERS}

    @given(data=st.data(), family=st.sampled_from(sorted(PARSERS)))
    def count(data: st.DataObject, family: str) -> None:
        labelled, reasoning, written = data.draw(turns(family))
        action = read(family, texts(labelled))
        found = [(call.name, dict(call.arguments)) for call in action.calls]
        seen[family].append(action.reasoning == reasoning and found == written and not action.faults)

    count()
    assert all(sum(each) * 2 >= len(each) for each in seen.values()), {k: sum(v) / len(v) for k, v in seen.items()}


MARKUP = [
    "<tool_call>", "</tool_call>", "\n", " ", "<think>", "</think>", "<function=", "<function=bash>", "</function>",
    "<parameter=command>", "</parameter>", '{"name": "bash", "arguments": {"command": "ls"}}', '{"name": "', '"', "{",
    "}", "None", "\ud800", "9" * 5000, '"arguments": ', "null", ",", ":", "<function=now>", "[" * 300,
]  # fmt: skip
soup = st.lists(st.sampled_from(MARKUP) | st.text(max_size=4), max_size=20).map("".join)


@both
@given(text=soup, data=st.data(), lenient=st.booleans(), finish=st.sampled_from(list(FinishReason)))
@example(text='<tool_call>{"name": "bash"', data=None, lenient=False, finish=FinishReason.LENGTH)
@example(text="</think>", data=None, lenient=False, finish=FinishReason.STOP)
def test_spans_tile_any_text(
    family: str, text: str, data: st.DataObject | None, lenient: bool, finish: FinishReason
) -> None:
    action = read(family, text, lenient=lenient, finish=finish)
    pieces = list(text) if data is None else data.draw(tokenizations(text))
    spans = kinds_of(pieces, action)
    assert [span.start for span in spans] == [0, *(span.stop for span in spans)][: len(spans)]
    assert (spans[-1].stop if spans else 0) == len(pieces)
    assert all(span.start < span.stop and span.kind in KINDS for span in spans)
    assert all(one.kind != other.kind for one, other in pairwise(spans))
    of_characters = spread(kinds_of(list(text), action))
    assert spread(spans) == by_characters(pieces, of_characters)
    for fault in action.faults:  # what is quoted as an attempt is one
        if fault.raw.startswith(("<tool_call>", "<function=")) and text.count(fault.raw) == 1:
            at = text.index(fault.raw)
            assert set(of_characters[at : at + len(fault.raw)]) <= {"call", "arguments"}


@pytest.mark.parametrize(
    ("family", "lenient", "finish", "labelled"),
    [
        # thinking that never ends is reasoning up to the call, or to the end
        ("hermes", False, "stop", [("<think>\nhm\n", "reasoning"), ("<tool_call>{}</tool_call>", "call")]),
        ("hermes", False, "length", [("<think>\nhm, and", "reasoning")]),
        # a call that was cut, or is broken, is a call without arguments
        ("hermes", False, "length", [("ok ", "text"), ('<tool_call>\n{"name": "bash", "argum', "call")]),
        ("hermes", False, "stop", [("ok ", "text"), ('<tool_call>\n{"name": }\n</tool_call>', "call"), ("\n", "text")]),
        ("qwen3_coder", False, "length", [("a", "text"), ("<tool_call>\n<function=bash>\n<parameter=com", "call")]),
        # text around a lone closer is text
        ("hermes", False, "stop", [("so </tool_call> was it", "text")]),
        # null arguments are none
        ("hermes", False, "stop", [('<tool_call>{"name": "now", "arguments": null}</tool_call>', "call")]),
        ("hermes", False, "stop", [('<tool_call>{"name": "now"}</tool_call>', "call"), (" ", "text")]),
        # what a lenient parser mends
        ("hermes", True, "stop", [('<tool_call>{"name": "bash", "parameters": ', "call"), ('{"n": 1}', "arguments"),
                                  ("}}</tool_call>", "call")]),
        ("hermes", True, "stop", [("<tool_call>{'name': 'bash', 'arguments': {'n': 1}}</tool_call>", "call")]),
        ("qwen3_coder", True, "stop", [("go ", "text"), ("<function=bash>\n<parameter=n>", "call"), ("7", "arguments"),
                                       ("</parameter>\n</function>", "call")]),
        # a value of its own newlines keeps them; what is not framed has none
        ("qwen3_coder", False, "stop", [("<tool_call>\n<function=bash>\n<parameter=command>\n", "call"),
                                        ("\nls\n", "arguments"), ("\n</parameter></function></tool_call>", "call")]),
        ("qwen3_coder", False, "stop", [("<tool_call><function=bash><parameter=command>", "call"), ("ls", "arguments"),
                                        ("</parameter></function></tool_call>", "call")]),
        # a value that quotes parameters
        ("qwen3_coder", False, "stop",
         [("<tool_call>\n<function=write_file>\n<parameter=content>\n", "call"),
          ("<parameter=path>\nx\n</parameter>\n<parameter=tags>\ny\n</parameter>", "arguments"),
          ("\n</parameter></function></tool_call>", "call")]),
        # a list that quotes the end of a value
        ("qwen3_coder", False, "stop",
         [("<tool_call>\n<function=write_file>\n<parameter=tags>\n", "call"),
          ('["<parameter=a>", "</parameter>\\n", 1]', "arguments"), ("\n</parameter></function></tool_call>", "call")]),
        # the mention of a function is not its call
        ("hermes", False, "stop", [("<function=now> ", "text"), ('<tool_call>{"name": "now", "arguments": ', "call"),
                                   ("{}", "arguments"), ("}</tool_call>", "call")]),
    ],
)  # fmt: skip
def test_edges(family: str, lenient: bool, finish: str, labelled: Labelled) -> None:
    text = texts(labelled)
    spans = kinds_of(list(text), read(family, text, lenient=lenient, finish=FinishReason(finish)))
    assert spread(spans) == labels_of(labelled)


def test_a_token_over_two_kinds_is_the_first() -> None:
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    pieces = ["<tool_call>", '{"name": "now", "arguments"', ": {", "", "}}<", "/tool_call>", ""]
    spans = kinds_of(pieces, read("hermes", text))
    assert spread(spans) == ["call", "call", "call", "arguments", "arguments", "call", "text"]


def test_calls_that_became_faults_without_a_quote_are_still_calls() -> None:
    text = 'hi <tool_call>{"name": "nope", "arguments": {}}</tool_call>'
    action = read("hermes", text)
    assert isinstance(action.attempts[0], ToolCall)
    fault = parse(HermesParser(), "<tool_call>", ()).attempts[0]
    action = evolve(action, attempts=(evolve(fault, raw=""),))
    assert kinds_of([text[:3], text[3:]], action) == (KindSpan(0, 1, "text"), KindSpan(1, 2, "call"))


def test_other_text_than_the_action_says_is_text() -> None:
    action = read("hermes", "<think>a</think>b")
    assert kinds_of(["something", " else"], action) == (KindSpan(0, 2, "text"),)
    assert kinds_of([], action) == ()
