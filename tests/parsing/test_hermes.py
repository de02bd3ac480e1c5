"""Where a Hermes block ends when its JSON does not, and what it must hold."""

from typing import Any

import pytest

from agentkit.parsing import HermesParser, parse
from agentkit.protocols import CallFault, FinishReason, ToolCall

NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
RM = '<tool_call>\n{"name": "bash", "arguments": {"command": "rm"}}\n</tool_call>'


def seen(text: str, *, lenient: bool = False, finish: FinishReason = FinishReason.STOP) -> list[Any]:
    attempts = parse(HermesParser(lenient=lenient), text, (), finish).attempts
    return [a.name if isinstance(a, ToolCall) else a.status.value for a in attempts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # a bad block ends at its closer, and the next one runs
        ('<tool_call>\n{"name": "now", }\n</tool_call>\n' + NOW, ["invalid_json", "now"]),
        ('<tool_call>\n{"name": "now"\n</tool_call>\n' + NOW, ["invalid_json", "now"]),
        ('<tool_call>\n{"name": "now\n</tool_call>\n' + NOW, ["invalid_json", "now"]),
        ('<tool_call>{"name": "a", "arguments": {"x": "</tool_call>", }}</tool_call>' + NOW, ["invalid_json", "now"]),
        ("<tool_call>\nnow()\n</tool_call>\n" + NOW, ["invalid_json", "now"]),
        # a forgotten closer is seen where the JSON is whole
        ('<tool_call>\n{"name": "x"}\n' + NOW, ["unclosed", "now"]),
        # what may be a call inside a bad value never runs
        ('<tool_call>\n{"name": "w", "arguments": {"c": "a "b" ' + RM + '"}}\n</tool_call>', ["invalid_json"]),
        ("<tool_call>\n{'name': 'w', 'arguments': {'c': '" + RM + RM + "'}}\n</tool_call>", ["invalid_json"]),
        ('<tool_call>\n{"c": a </tool_call> b ' + RM + ' c </tool_call>\n' + NOW, ["invalid_json", "now"]),
        ('<tool_call>\n{"name": ' + NOW, ["invalid_json"]),
        ("the tag <tool_call> opens\n" + NOW, ["invalid_json"]),
        # a call without its opener is no answer
        ('{"name": "now", "arguments": {}}\n</tool_call>', ["malformed"]),
        ("a</tool_call>b</tool_call>" + NOW, ["malformed", "now"]),
        # contents
        ("<tool_call>[]</tool_call>", ["malformed"]),
        ('<tool_call>[{"name": "now"}]</tool_call>', ["malformed"]),
        ('<tool_call>{"arguments": {}}</tool_call>', ["missing_name"]),
        ('<tool_call>{"name": "", "arguments": {}}</tool_call>', ["missing_name"]),
        ('<tool_call>{"name": "a", "arguments": []}</tool_call>', ["bad_arguments"]),
        ('<tool_call>{"name": "a", "arguments": "{}"}</tool_call>', ["bad_arguments"]),
        ('<tool_call>{"name": "a", "arguments": {}, "timeout": 5}</tool_call>', ["malformed"]),
        ('<tool_call>{"name": "a", "name": "b"}</tool_call>', ["invalid_json"]),
        ('<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>', ["invalid_json"]),
        ('<tool_call>{"name": "a"} {"name": "b"}</tool_call>', ["invalid_json"]),
    ],
)  # fmt: skip
def test_blocks_end_where_nothing_quoted_can_run(text: str, expected: list[str]) -> None:
    assert seen(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name": "a", "arguments": "{\\"x\\": 1}"}</tool_call>', ToolCall("call_0", "a", {"x": 1})),
        ('<tool_call>{"name": "a", "parameters": {"x": 1}}</tool_call>', ToolCall("call_0", "a", {"x": 1})),
        ('<tool_call>{"name": "a", "arguments": {"x": "1\n2"}}</tool_call>', ToolCall("call_0", "a", {"x": "1\n2"})),
        ("<tool_call>{'name': 'a', 'arguments': {'x': '<tool_call>'}}", ToolCall("call_0", "a", {"x": "<tool_call>"})),
        ('<tool_call>{"name": "a", "id": 7}</tool_call>', ToolCall("call_0", "a")),
    ],
)  # fmt: skip
def test_lenient_mends_common_slips(text: str, expected: ToolCall) -> None:
    assert parse(HermesParser(lenient=True), text).attempts == (expected,)
    assert isinstance(parse(HermesParser(), text).attempts[0], CallFault)


def test_lenient_still_refuses_what_it_would_have_to_guess() -> None:
    for body in ("{", '{"name": 5}', '{"name": "a", "arguments": "x"}', '{"name": "a", "arguments": [NaN]}', "a()"):
        assert all(a != "a" for a in seen(f"<tool_call>{body}</tool_call>", lenient=True))


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.ABORTED])
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("stop", range(1, len(RM)))
def test_every_cut_of_a_call_is_truncated_and_never_mended(stop: int, lenient: bool, finish: FinishReason) -> None:
    expected = [] if stop < len("<tool_call>") else ["truncated"]
    assert seen(RM[:stop], lenient=lenient, finish=finish) == expected


def test_cut_in_a_string_that_quotes_a_closer_is_truncated() -> None:
    for text in (
        '<tool_call>{"name": "a", "arguments": {"x": "</tool_call> lo',
        '<tool_call>{"name": "</tool_call>", "a',
    ):
        assert seen(text, finish=FinishReason.LENGTH) == ["truncated"]


def test_fault_holds_the_block_and_the_name() -> None:
    (fault,) = parse(HermesParser(), 'so\n<tool_call>{"name": "a", "arguments": 5}</tool_call>').attempts
    assert isinstance(fault, CallFault)
    assert (fault.name, fault.raw) == ("a", '<tool_call>{"name": "a", "arguments": 5}</tool_call>')
    assert fault.reason == "'arguments' must be an object, found int"
