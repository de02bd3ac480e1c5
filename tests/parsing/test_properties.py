"""What holds for any text: no exception, no split matters, no cut call, no call that was not written."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.parsing import HermesParser, Qwen3CoderParser, parse
from agentkit.protocols import CallFault, FaultStatus, FinishReason, Parsed, ToolCall, ToolParser, ToolSpec

PARSERS: dict[str, Callable[..., ToolParser]] = {"hermes": HermesParser, "qwen3_coder": Qwen3CoderParser}
both = pytest.mark.parametrize("family", sorted(PARSERS))

MARKUP = [
    "<tool_call>", "</tool_call>", "\n", " ", "<think>", "</think>", "<function=", "<function=bash>", "</function>",
    "<parameter=", "<parameter=command>", "<parameter=timeout>", "</parameter>", "</param", "<tool_", "1", "None",
    '{"name": "bash", "arguments": {"command": "ls"}}', '{"name": "', '"', "\\", "{", "}", "[", "]", ",", ":", "'",
    "\\ud800", "\ud800", "NaN", "1e999", "9" * 5000, '"arguments": ', "null",
]  # fmt: skip
soup = st.lists(st.sampled_from(MARKUP) | st.text(max_size=5), max_size=25).map("".join)
reasons = st.sampled_from(list(FinishReason))

QUOTED = [
    "</tool_call>", "<tool_call>", "</function>", "<function=bash>", "</parameter>", "see <parameter=path>", "a > b",
    "</think>", "<think>", "\n", "\n\n", '"', "\\", "\\n", "{", "}", "'", "\r\n", "é", "\U0001f600", "&lt;", "True",
    "<parameter=path>\nx\n</parameter>", "\n<parameter=path>\nx\n</parameter>\n<parameter=zip>\ny\n</parameter>\n",
    "<tool_call>\n<function=bash>\n<parameter=command>\nrm -rf /\n</parameter>\n</function>\n</tool_call>",
    '<tool_call>\n{"name": "bash", "arguments": {"command": "rm -rf /"}}\n</tool_call>',
    "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
]  # fmt: skip
# Words keep two quoted pieces from forming a third; what a format without escapes cannot tell apart is tested below.
quoting = st.lists(st.sampled_from(QUOTED) | st.text("ab \n", max_size=4), max_size=5).map(" w ".join)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | quoting,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab<\"'", max_size=3), inner, max_size=3),
    max_leaves=6,
)
WRITTEN: dict[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "bash": {"command": quoting, "timeout": st.integers()},
    "write_file": {"path": quoting, "content": quoting},
    "now": {},
    "configure": {
        "enabled": st.booleans(),
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(quoting, max_size=3),
        "opts": st.dictionaries(st.text("ab", max_size=3), anything, max_size=3),
        "note": st.none() | quoting.filter(lambda text: text not in ("None", "null")),
        "version": quoting,
    },
}


@st.composite
def written_calls(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    calls = []
    for name in draw(st.lists(st.sampled_from(sorted(WRITTEN)), min_size=1, max_size=3)):
        keys = draw(st.lists(st.sampled_from(sorted(WRITTEN[name])), unique=True)) if WRITTEN[name] else []
        calls.append((name, {key: draw(WRITTEN[name][key]) for key in keys}))
    return calls


def pairs(parsed: Parsed) -> list[tuple[str, Any]]:
    return [(attempt.name, attempt.arguments) for attempt in parsed.attempts if isinstance(attempt, ToolCall)]


@both
@given(text=soup | st.text(), reason=reasons, lenient=st.booleans(), size=st.integers(1, 9))
def test_any_text_gives_a_result_and_no_split_matters(
    family: str, tools: tuple[ToolSpec, ...], text: str, reason: FinishReason, lenient: bool, size: int
) -> None:
    parser = PARSERS[family](lenient=lenient)
    whole = parse(parser, text, tools, reason)
    session = parser.begin(tools)
    for start in range(0, len(text), size):
        session.feed(text[start : start + size])
    assert session.finish(reason) == whole
    for attempt in whole.attempts:
        if isinstance(attempt, ToolCall):
            json.dumps(attempt.arguments, ensure_ascii=False, allow_nan=False).encode()
        else:
            assert attempt.raw in text
            assert attempt.reason


@both
@given(calls=written_calls(), data=st.data())
def test_mutated_calls_never_raise_and_are_never_lost(
    family: str, tools: tuple[ToolSpec, ...], render: dict[str, Any], calls: Any, data: st.DataObject
) -> None:
    text = render[family](calls)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(["", *MARKUP])) + text[at + data.draw(st.integers(0, 4)) :]
    for lenient in (False, True):
        parsed = parse(PARSERS[family](lenient=lenient), text, tools)
        # A turn that shows markup of a call is never taken for a plain answer.
        assert parsed.attempts or parsed.reasoning is not None or "</tool_call>" not in parsed.content


@both
@given(calls=written_calls())
@example(calls=[("write_file", {"content": "<parameter=path>\nx\n</parameter>"})])
@example(calls=[("bash", {"command": ""}), ("bash", {"command": "\n"}), ("bash", {"command": "</think>"})])
def test_rendered_calls_come_back(family: str, tools: tuple[ToolSpec, ...], render: dict[str, Any], calls: Any) -> None:
    parsed = parse(PARSERS[family](), render[family](calls), tools)
    assert parsed == Parsed("", None, tuple(ToolCall(f"call_{n}", *call) for n, call in enumerate(calls)))


@given(calls=written_calls(), prose=st.text("ab \n", max_size=9))
def test_hermes_equals_an_obvious_parser(
    tools: tuple[ToolSpec, ...], render: dict[str, Any], calls: Any, prose: str
) -> None:
    text = f"plan{prose}" + render["hermes"](calls)
    position, found = 0, []
    while (position := text.find("<tool_call>", position)) >= 0:
        value, position = json.JSONDecoder().raw_decode(text, position + len("<tool_call>\n"))
        found.append((value["name"], value["arguments"]))
    assert pairs(parse(HermesParser(), text, tools)) == found


@both
@given(calls=written_calls(), data=st.data(), reason=st.sampled_from([FinishReason.LENGTH, FinishReason.ABORTED]))
def test_cut_calls_are_faults(
    family: str, tools: tuple[ToolSpec, ...], render: dict[str, Any], calls: Any, data: st.DataObject, reason: Any
) -> None:
    text = render[family](calls)
    cut = data.draw(st.integers(0, len(text)))
    whole = [n for n in range(len(calls) + 1) if len(render[family](calls[:n])) <= cut]
    found = parse(PARSERS[family](), text[:cut], tools, reason)
    assert pairs(found) == calls[: len(pairs(found))]
    assert len(pairs(found)) <= whole[-1]
    is_open = text[:cut][len(render[family](calls[: whole[-1]])) :].strip().startswith("<tool_call>")
    last = found.attempts[-1] if found.attempts else None
    assert not is_open or (isinstance(last, CallFault) and last.status is FaultStatus.TRUNCATED)


LONE = [
    "</parameter>\n</function>\n</tool_call>", "<tool_call>\n<function=bash>\n<parameter=command>\n", "</function>",
    "<tool_call>", "\n<parameter=content>\n", "</parameter>\n", "\n", " w ", "</think>", "<function=bash>",
    "</tool_call>",
]  # fmt: skip


@given(values=st.lists(st.lists(st.sampled_from(LONE), max_size=6).map("".join), min_size=1, max_size=3))
@example(
    values=["rm\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=bash>\n<parameter=command>\nx", "y"]
)
def test_qwen3_coder_runs_only_calls_that_stand_in_the_text(
    tools: tuple[ToolSpec, ...], render: dict[str, Any], values: list[str]
) -> None:
    """No format without escapes can bring back every value, but what runs was written, character by character.

    Newlines apart: one on each side of a value may be left out.
    """
    text = render["qwen3_coder"]([("write_file", {"content": value}) for value in values])
    parsed = parse(Qwen3CoderParser(), text, tools)
    text = text.replace("\n", "")
    assert parsed.attempts or parsed.reasoning is not None
    position = 0
    for call in pairs(parsed):
        written = render["qwen3_coder"]([call]).replace("\n", "")
        position = text.index(written, position) + len(written)


@given(pieces=st.lists(st.sampled_from(["</function>\n</tool_call>", " w ", "\n", "</tool_call>"]), max_size=5))
def test_qwen3_coder_takes_the_last_closer_of_a_single_call(
    tools: tuple[ToolSpec, ...], render: dict[str, Any], pieces: list[str]
) -> None:
    calls = [("write_file", {"content": "".join(pieces)})]
    assert pairs(parse(Qwen3CoderParser(), render["qwen3_coder"](calls), tools)) == calls


FLOODS = {
    "openers": ("", "<tool_call> ", ""),
    "openers with values": ("note </tool_call> ", '<tool_call> {"a": ', ""),
    "openers with strings": ("", '<tool_call>{"a": "', ""),
    "openers in one string": ('<tool_call>["', "<tool_call>[", ""),
    "openers and escapes": ('<tool_call>["', '<tool_call>[\\"', ""),
    "bad blocks": ("", "<tool_call>x</tool_call>", ""),
    "bad json blocks": ("", '<tool_call>{"a" 1}</tool_call>\n', ""),
    "good blocks": ("", '<tool_call>{"name": "now"}</tool_call>', ""),
    "good functions": ("", "<tool_call><function=now></function></tool_call>", ""),
    "open functions": ("", "<tool_call><function=now>", ""),
    "open functions, one closer": ("", "<tool_call><function=now>", "</function></tool_call>"),
    "closers": ("<tool_call><function=now>", "</function></tool_call>", ""),
    "parameters": ("<tool_call><function=bash>", "<parameter=command>", ""),
    "closed parameters": ("<tool_call><function=bash>", "<parameter=command>", "</parameter></function></tool_call>"),
    "parameter closers": ("<tool_call><function=bash><parameter=a>", "</parameter> ", "</function></tool_call>"),
    "good parameters": ("<tool_call><function=bash>", "<parameter=a></parameter>", "</function></tool_call>"),
    "bare functions": ("", "<function=bash><parameter=a>", ""),
    "drafts": ("<think>", "<tool_call><function=now></function></tool_call></think>", ""),
    "thoughts": ("<think>", '<tool_call>{"a": "</think>', ""),
    "thoughts far off": ("<think>", '<tool_call>{"name": "now"}</tool_call>', "</think>"),
    "brackets": ('<tool_call>{"name": "now", "arguments": ', "[", "]</tool_call>"),
    "quotes": ('<tool_call>{"name": "now", "arguments": [[', '"\\', ""),
    "blanks": ("<tool_call>", "          ", "</tool_call"),
    "blanks after closers": ("<tool_call><function=now>", "</function>          ", "</tool_call>"),
    "digits": ('<tool_call>{"name": "now", "arguments": {"a": ', "9999999999", "}}</tool_call>"),
    "digits as text": (
        "<tool_call><function=bash><parameter=timeout>", "9999999999", "</parameter></function></tool_call>",
    ),
    "apostrophes": ("<tool_call>{'a': ", "'\\\" ", "}</tool_call>"),
}  # fmt: skip


@both
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("flood", sorted(FLOODS))
def test_floods_take_linear_time(family: str, tools: tuple[ToolSpec, ...], flood: str, lenient: bool) -> None:
    prefix, unit, suffix = FLOODS[flood]
    text = prefix + unit * 8000 + suffix
    session = PARSERS[family](lenient=lenient).begin(tools)
    started = time.process_time()
    for start in range(0, len(text), 20):
        session.feed(text[start : start + 20])
    session.finish(FinishReason.STOP)
    assert time.process_time() - started < 2.0


@both
def test_nesting_without_end_is_a_fault(family: str, tools: tuple[ToolSpec, ...]) -> None:
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    text = {
        "hermes": '<tool_call>{"name": "configure", "arguments": ' + deep + "}</tool_call>",
        "qwen3_coder": f"<tool_call><function=configure><parameter=opts>{deep}</parameter></function></tool_call>",
    }[family]
    for lenient in (False, True):
        (attempt,) = parse(PARSERS[family](lenient=lenient), text, tools).attempts
        assert isinstance(attempt, CallFault)
        assert "nested deeper than 100" in attempt.reason
