"""Where Qwen3-Coder blocks and values end when values hold tags, and how values are typed."""

from typing import Any

import pytest

from agentkit.parsing import Qwen3CoderParser, parse
from agentkit.protocols import CallFault, FinishReason, ToolCall, ToolSpec

END = "\n</parameter>\n</function>\n</tool_call>"
BASH = "<tool_call>\n<function=bash>\n<parameter=command>\n"
LS = BASH + "ls" + END


def seen(
    text: str, tools: tuple[ToolSpec, ...], *, lenient: bool = False, finish: FinishReason = FinishReason.STOP
) -> list[Any]:
    attempts = parse(Qwen3CoderParser(lenient=lenient), text, tools, finish).attempts
    return [dict(a.arguments) if isinstance(a, ToolCall) else a.status.value for a in attempts]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # balanced quotes and quoted closers are text
        (BASH + LS + END, [{"command": LS}]),
        (BASH + "a" + END + " b" + END, [{"command": "a" + END + " b"}]),
        (BASH + "<parameter=x> is a tag" + END, [{"command": "<parameter=x> is a tag"}]),
        (BASH + "a</parameter>b" + END, [{"command": "a</parameter>b"}]),
        (BASH + "</function>" + END, [{"command": "</function>"}]),
        # a bad block ends at its closer, and the next one runs
        ("<tool_call>\n</tool_call>\n" + LS, ["malformed", {"command": "ls"}]),
        ("<tool_call>\n<function=bash>\nls\n</tool_call>\n", ["malformed"]),
        (BASH + "ls\n</parameter>\n</tool_call>\n" + LS, ["malformed", {"command": "ls"}]),
        ("<tool_call>\n<function=now>\n</tool_call>\n" + LS, ["malformed", {"command": "ls"}]),
        ("<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>\n" + LS, ["malformed", {"command": "ls"}]),
        (BASH + "ls\n</function>\n</tool_call>\n" + LS, ["malformed", {"command": "ls"}]),
        # two readings: none runs
        (BASH + "ls\n" + LS, ["unclosed"]),
        (LS + LS + " b" + END, ["malformed"]),
        (LS + " then <function=bash>\n<parameter=command>\nrm" + END, ["malformed"]),
        (LS + " b <function=bash><parameter=command>rm</parameter></function></tool_call>", ["malformed"]),
        # forgotten openers
        (LS + "\n<function=bash>\n<parameter=command>\nrm" + END, [{"command": "ls"}, "malformed"]),
        ("so\n<function=bash>\n<parameter=command>\nrm" + END, ["malformed"]),
        ("rm" + END, ["malformed"]),
        ("the <function=bash> tag", []),
        # headers and parameters
        ("<tool_call><function=></function></tool_call>", ["missing_name"]),
        ("<tool_call><function=a\nb></function></tool_call>", ["missing_name"]),
        ("<tool_call><function=now>x</function></tool_call>", ["malformed"]),
        (BASH + "ls\n</parameter>\nx\n</function>\n</tool_call>", ["malformed"]),
        ("<tool_call><function=bash><parameter=command>ls</parameter></function></tool_call>", [{"command": "ls"}]),
        ("<tool_call><function=bash><parameter=a>x<parameter=b>5</parameter></function></tool_call>", ["malformed"]),
        (BASH + "\n\nls" + END, [{"command": "\n\nls"}]),
        (BASH + "ls\n</parameter>\n<parameter=timeout>\n5s" + END, ["bad_arguments"]),
    ],
)  # fmt: skip
def test_blocks_end_where_nothing_quoted_can_run(text: str, expected: list[Any], tools: tuple[ToolSpec, ...]) -> None:
    assert seen(text, tools) == expected


def test_bad_value_spoils_only_its_call(tools: tuple[ToolSpec, ...]) -> None:
    bad = BASH + "ls\n</parameter>\n<parameter=timeout>\n5s" + END
    assert seen(f"{LS}\n{bad}\n{LS}", tools) == [{"command": "ls"}, "bad_arguments", {"command": "ls"}]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so\n<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>", [{"command": "ls"}]),
        (LS + "\n<function=bash>\n<parameter=command>\nrm" + END, [{"command": "ls"}, {"command": "rm"}]),
        (BASH + "ls\n</parameter>\n</tool_call>", [{"command": "ls"}]),
        (BASH + "ls\n<parameter=timeout>\n5" + END, [{"command": "ls", "timeout": 5}]),
        (BASH + "a\n</parameter>\n<parameter=command>\nb" + END, [{"command": "b"}]),
        (BASH + "ls\n<parameter=unheard-of>\n5" + END, ["malformed"]),
    ],
)
def test_lenient_mends_common_slips(text: str, expected: list[Any], tools: tuple[ToolSpec, ...]) -> None:
    assert seen(text, tools, lenient=True) == expected
    assert "malformed" in seen(text, tools) or "bad_arguments" in seen(text, tools)


@pytest.mark.parametrize("finish", [FinishReason.LENGTH, FinishReason.ABORTED])
@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize("stop", range(1, len(LS)))
def test_every_cut_of_a_call_is_truncated_and_never_mended(
    stop: int, lenient: bool, finish: FinishReason, tools: tuple[ToolSpec, ...]
) -> None:
    expected = [] if stop < len("<tool_call>") else ["truncated"]
    assert seen(LS[:stop], tools, lenient=lenient, finish=finish) == expected


def test_cut_behind_a_closer_may_be_a_cut_value(tools: tuple[ToolSpec, ...]) -> None:
    cut = FinishReason.LENGTH
    assert seen(LS + "\n", tools, finish=cut) == [{"command": "ls"}]
    assert seen(LS + " and", tools, finish=cut) == ["truncated"]
    assert seen(LS + LS + " and", tools, finish=cut) == [{"command": "ls"}, "truncated"]
    assert seen("<function=bash>\n<parameter=command>\nl", tools, finish=cut) == ["truncated"]


def test_fault_holds_the_block_and_the_name(tools: tuple[ToolSpec, ...]) -> None:
    bad = BASH + "ls\n</parameter>\n<parameter=timeout>\n5s" + END
    (fault,) = parse(Qwen3CoderParser(), f"so\n{bad}\n", tools).attempts
    assert isinstance(fault, CallFault)
    assert (fault.name, fault.raw) == ("bash", bad)
    assert fault.reason == "parameter 'timeout' must be integer, found '5s'"


def test_values_of_unknown_tools_stay_text(tools: tuple[ToolSpec, ...]) -> None:
    text = "<tool_call>\n<function=nope>\n<parameter=a>\n5" + END
    assert parse(Qwen3CoderParser(), text, tools).attempts == (ToolCall("call_0", "nope", {"a": "5"}),)


def test_draft_and_call_are_not_one_block(tools: tuple[ToolSpec, ...]) -> None:
    quoting = BASH + "a" + END + " b" + END
    for text in (f"<think>{LS} no</think>{quoting}", f"<think>{BASH}\n no</think>{LS}"):
        parsed = parse(Qwen3CoderParser(), text, tools)
        assert parsed.reasoning is not None
        assert parsed.reasoning.endswith("no")
