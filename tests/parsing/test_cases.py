"""Every case, whole, one character at a time, and split at random: one result."""

import random
from typing import Any

from agentkit.parsing import HermesParser, Qwen3CoderParser, parse
from agentkit.protocols import CallFault, FinishReason, Parsed, ToolCall, ToolParser, ToolSpec

PARSERS: dict[str, Any] = {"hermes": HermesParser, "qwen3_coder": Qwen3CoderParser}
Case = dict[str, Any]
Toolsets = dict[str, tuple[ToolSpec, ...]]


def text_of(case: Case) -> str:
    if "text" in case:
        return str(case["text"])
    generate = case["generate"]
    return str(generate["prefix"] + generate["unit"] * generate["times"] + generate["suffix"])


def expected_calls(case: Case, calls: list[Any]) -> list[Any]:
    if "value" not in case:
        return calls
    value = case["value"]["unit"] * case["value"]["times"]
    return [
        {"name": call["name"], "arguments": {k: value if v == "@GEN@" else v for k, v in call["arguments"].items()}}
        for call in calls
    ]


def calls_of(parsed: Parsed) -> list[Any]:
    return [{"name": a.name, "arguments": a.arguments} for a in parsed.attempts if isinstance(a, ToolCall)]


def parser_of(case: Case, *, lenient: bool = False) -> ToolParser:
    return PARSERS[case["id"].split("/")[0]](lenient=lenient)  # type: ignore[no-any-return]  # looked up by family


def parse_pieces(case: Case, toolsets: Toolsets, pieces: list[str]) -> Parsed:
    session = parser_of(case).begin(toolsets[case["tools"]])
    for piece in pieces:
        session.feed(piece)
    return session.finish(FinishReason(case["finish"]))


def test_case_gives_its_calls_and_faults(case: Case, toolsets: Toolsets) -> None:
    parsed = parse_pieces(case, toolsets, [text_of(case)])
    assert calls_of(parsed) == expected_calls(case, case["calls"])
    faults = [attempt for attempt in parsed.attempts if isinstance(attempt, CallFault)]
    assert [fault.status for fault in faults] == case["faults"]
    assert all(fault.reason and fault.raw in text_of(case) for fault in faults)
    assert [attempt.id for attempt in parsed.attempts] == [f"call_{n}" for n in range(len(parsed.attempts))]
    if "content" in case:
        assert parsed.content == case["content"]
    assert parsed.reasoning == case.get("reasoning")


def test_case_is_the_same_however_it_is_split(case: Case, toolsets: Toolsets) -> None:
    text = text_of(case)
    whole = parse_pieces(case, toolsets, [text])
    assert parse_pieces(case, toolsets, list(text)) == whole
    assert parse_pieces(case, toolsets, case.get("chunks", [text])) == whole
    rng = random.Random(case["id"])
    for _ in range(3):
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parse_pieces(case, toolsets, pieces) == whole


def test_case_is_mended_only_by_a_lenient_parser(case: Case, toolsets: Toolsets) -> None:
    parsed = parse(parser_of(case, lenient=True), text_of(case), toolsets[case["tools"]], FinishReason(case["finish"]))
    assert calls_of(parsed) == expected_calls(case, case["lenient"] if "lenient" in case else case["calls"])


def test_faults_name_what_is_wrong(toolsets: Toolsets, case: Case) -> None:
    """The policy must be able to act on the reason: it holds the words that matter."""
    words = {
        "hermes/key-twice": "duplicate key 'query'",
        "hermes/lone-surrogate": "lone surrogate",
        "hermes/no-closer-at-stop": "missing </tool_call>",
        "hermes/parameters-for-arguments": "missing 'arguments'",
        "hermes/list-as-name": "'name' must be",
        "hermes/nothing-inside": "empty tool call",
        "qwen3_coder/boolean-junk": "parameter 'enabled' must be boolean",
        "qwen3_coder/integer-junk": "parameter 'count' must be integer",
        "qwen3_coder/infinity": "parameter 'ratio' must be a finite number",
        "qwen3_coder/python-list": "parameter 'tags' must be array",
        "qwen3_coder/value-without-closer": "parameter 'query' not closed",
        "qwen3_coder/function-without-closer": "missing </function>",
        "qwen3_coder/no-opener": "missing <tool_call>",
        "qwen3_coder/json-body": "no <function=",
        "qwen3_coder/parameter-twice": "duplicate parameter 'query'",
    }
    expected = words.get(case["id"], "")
    parsed = parse_pieces(case, toolsets, [text_of(case)])
    assert not expected or expected in next(a.reason for a in parsed.attempts if isinstance(a, CallFault))
