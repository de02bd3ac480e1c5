"""Reasoning, content and numbering, which all families share."""

from typing import Any

import pytest

from agentkit.parsing import HermesParser, Qwen3CoderParser, parse
from agentkit.protocols import CallFault, FinishReason, Parsed, ToolCall, ToolParser, ToolSpec

NOW = {
    "hermes": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
}
PARSERS: dict[str, ToolParser] = {"hermes": HermesParser(), "qwen3_coder": Qwen3CoderParser()}
both = pytest.mark.parametrize("family", sorted(PARSERS))
CALL = ToolCall("call_0", "now")


@both
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" plain\n", Parsed(" plain\n")),
        ("", Parsed("")),
        ("<think>\nwhy\n</think>\n\nso", Parsed("so", "why")),
        ("why\n</think>\n\nso", Parsed("so", "why")),
        ("<think>\n\n</think>\n\nNOW", Parsed("", "", (CALL,))),
        ("\n<think>why", Parsed("", "why")),
        ("<think>why NOW", Parsed("", "why ", (CALL,))),
        ("<think>NOW no</think>so", Parsed("so", "NOW no")),
        ("NOW no</think>so", Parsed("so", "NOW no")),
        ("a <think> b", Parsed("a <think> b")),
        ("<think>use <tool_call> or not\n</think>NOW", Parsed("", "use <tool_call> or not", (CALL,))),
        ("<think>a</think>b</think>c", Parsed("b</think>c", "a")),
        (" a \nNOW\n b \nNOW c ", Parsed(" a\nb\nc", None, (CALL, ToolCall("call_1", "now")))),
    ],
)
def test_reasoning_is_cut_off_first(family: str, text: str, expected: Parsed) -> None:
    def place(text: str) -> str:
        return text.replace("NOW", NOW[family])

    reasoning = None if expected.reasoning is None else place(expected.reasoning)
    assert parse(PARSERS[family], place(text)) == Parsed(expected.content, reasoning, expected.attempts)


@both
def test_end_of_thinking_inside_a_call_is_text(family: str, tools: tuple[ToolSpec, ...], render: Any) -> None:
    calls = [("bash", {"command": "echo '</think>'"})]
    written = render[family](calls)
    for text, reasoning in ((written, None), (f"<think>hm\n{written}", "hm")):
        assert parse(PARSERS[family], text, tools) == Parsed("", reasoning, (ToolCall("call_0", *calls[0]),))


@both
@pytest.mark.parametrize("lost", ["</tool_call>", "l></tool_call>", "\n</tool_call>"])
def test_cut_call_that_holds_the_end_of_thinking_is_a_fault(
    family: str, tools: tuple[ToolSpec, ...], render: Any, lost: str
) -> None:
    text = render[family]([("bash", {"command": "echo '</think>'"})])
    parsed = parse(PARSERS[family], text[: -len(lost)], tools, FinishReason.LENGTH)
    assert [a.status.value for a in parsed.attempts if isinstance(a, CallFault)] == ["truncated"]


@both
def test_attempts_are_numbered_in_order_faults_included(family: str) -> None:
    text = f"{NOW[family]}\n<tool_call>\n</tool_call>\n{NOW[family]}"
    for finish in FinishReason:
        attempts = parse(PARSERS[family], text, (), finish).attempts
        assert [(a.id, isinstance(a, ToolCall)) for a in attempts] == [
            ("call_0", True), ("call_1", False), ("call_2", True)
        ]  # fmt: skip


@both
def test_sessions_of_one_parser_share_nothing(family: str) -> None:
    one, two = PARSERS[family].begin(()), PARSERS[family].begin(())
    one.feed("<tool_call>")
    two.feed("plain")
    assert two.finish(FinishReason.STOP) == Parsed("plain")
    one.feed(NOW[family].removeprefix("<tool_call>"))
    assert one.finish(FinishReason.STOP).attempts == (CALL,)
