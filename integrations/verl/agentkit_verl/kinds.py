"""What kind of text each sampled token of one action is: reasoning, call, arguments, or plain text.

Parsers say what was found and not where, so the places are found again, led by what the parser found: the reasoning it
cut off, the calls it read, the faults it quotes. Tags are those of the Hermes and Qwen3-Coder families.

- `reasoning`: `<think>` to `</think>`, both included; from the start where the prompt opened the thinking.
- `arguments`: in Hermes calls the value of `arguments`, braces included; in Qwen3-Coder calls what stands between
  `<parameter=KEY>` and `</parameter>`, without the tags and without the newline that each side may have.
- `call`: the rest of a call, from `<tool_call>` to `</tool_call>`, and all of an attempt that did not parse.
- `text`: everything else, and whatever cannot be told.

A token is what its first character is. One that adds no character, as a part of one in UTF-8 does, is what the next
character is, and `text` at the end.
"""

import json
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final, TypeAlias

from agentkit.protocols import Action, CallFault, Json, ToolCall
from agentkit_verl.rows import KindSpan

KINDS: Final = ("reasoning", "text", "call", "arguments")
"""The kinds there are."""

_Place: TypeAlias = tuple[int, int, str]
"""Characters `start <= c < stop` of one kind; of two places that overlap the later one counts."""

_THINK_OPEN, _THINK_CLOSE = "<think>", "</think>"
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_END_VALUE, _END_FUNCTION = "</parameter>", "</function>"
_OPENER = re.compile(r"<tool_call>|<function=")
_FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^<>\n]*)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_VALUE_END = re.compile(r"</parameter>\s*(?=<parameter=|</function>|</tool_call>|\Z)")
_FUNCTION_END = re.compile(r"(?:\s*</function>)?(?:\s*</tool_call>)?")
_CALL_END = re.compile(r"[}\]\s]*</tool_call>")
_BLANKS = re.compile(r"\s*")
_JSON = json.JSONDecoder(strict=False)


def kinds_of(pieces: Sequence[str], action: Action) -> tuple[KindSpan, ...]:
    """Spans that tile the sampled tokens of `action`: `pieces[t]` is the text that token t adds.

    Linear in the text but for quoted tags. Never raises: where the text is not what the action says, it is `text`.
    """
    joined = "".join(pieces)
    text = action.text if joined.startswith(action.text) else joined
    kinds = ["text"] * (len(joined) + 1)
    for start, stop, kind in _places(text, action):
        kinds[start:stop] = [kind] * (stop - start)
    of_token: list[str] = []
    at = 0
    for piece in pieces:
        of_token.append(kinds[at])
        at += len(piece)
    spans: list[KindSpan] = []
    for kind, run in groupby(of_token):
        start = spans[-1].stop if spans else 0
        spans.append(KindSpan(start, start + len(list(run)), kind))
    return tuple(spans)


def _places(text: str, action: Action) -> Iterator[_Place]:
    position = 0
    if action.reasoning is not None:
        position = _reasoning_end(text, action.reasoning)
        yield 0, position, "reasoning"
    for attempt in action.attempts:
        found = _call(text, position, attempt) if isinstance(attempt, ToolCall) else _fault(text, position, attempt)
        if not found:
            return
        yield from found
        position = found[0][1]


def _reasoning_end(text: str, reasoning: str) -> int:
    """Where the reasoning with its closing tag ends; 0 if it is not at the start of `text`."""
    begin = len(text) - len(text.lstrip())
    begin = begin + len(_THINK_OPEN) if text.startswith(_THINK_OPEN, begin) else 0
    start = len(text) - len(text[begin:].lstrip("\n"))
    if not reasoning:
        start = begin  # nothing but newlines: the tag after them is looked for below
    stop = start + len(reasoning)
    if not text.startswith(reasoning, start):
        return 0
    after = len(text) - len(text[stop:].lstrip("\n"))
    if text.startswith(_THINK_CLOSE, after):
        return after + len(_THINK_CLOSE)
    return after if after == len(text) or _OPENER.match(text, after) else 0


def _fault(text: str, position: int, fault: CallFault) -> list[_Place]:
    """The place of an attempt that did not parse; what it holds beside its tags is not told apart."""
    raw = fault.raw
    if not raw:
        start = text.find(_OPEN, position)
        closer = text.find(_CLOSE, start) if start >= 0 else -1
        return [(start, closer + len(_CLOSE), "call")] if closer >= 0 else []
    start = text.find(raw, position)
    if start < 0:
        return []
    # Without an opener the quote is all that stood before a lone closer: plain text for the most part.
    return [(start, start + len(raw), "call" if _OPENER.match(raw) else "text")]


def _call(text: str, position: int, call: ToolCall) -> list[_Place]:
    """The place of the next call and those of its arguments, in this order; none if it is not the one that was read."""
    for opener in _OPENER.finditer(text, position):
        function = _FUNCTION.match(text, opener.start())
        if function is not None:
            places = _tagged_call(text, opener.start(), function, call)
        elif opener.group() == _OPEN:
            places = _json_call(text, opener.start(), opener.end(), call)
        else:
            places = []
        if places:
            return places
    return []


def _json_call(text: str, start: int, begin: int, call: ToolCall) -> list[_Place]:
    begin = _after_blanks(text, begin)
    try:
        members, stop = _members(text, begin)
    except (ValueError, RecursionError):  # no strict JSON: a parser that mends it knows more than is known here
        return [(start, _call_end(text, begin), "call")]
    if "name" not in members or members["name"][2] != call.name:
        return []
    closer = _CALL_END.match(text, stop)
    places: list[_Place] = [(start, stop if closer is None else closer.end(), "call")]
    named = members.get("arguments", members.get("parameters"))
    if named is not None and named[2] is not None:
        places.append((named[0], named[1], "arguments"))
    return places


def _call_end(text: str, begin: int) -> int:
    closer = text.find(_CLOSE, begin)
    return closer + len(_CLOSE) if closer >= 0 else len(text)


def _members(text: str, start: int) -> tuple[dict[str, tuple[int, int, Json]], int]:
    """Where the values of the JSON object at `start` stand, and what they are, by key; and where the object ends.

    Raises:
        ValueError: there is no JSON object.
    """
    members: dict[str, tuple[int, int, Json]] = {}
    at = _after(text, start, "{")
    while not text.startswith("}", at):
        if members:
            at = _after(text, at, ",")
        key, at = _JSON.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key must be a text")
        begin = _after(text, _after_blanks(text, at), ":")
        value, stop = _JSON.raw_decode(text, begin)
        members[key] = (begin, stop, value)
        at = _after_blanks(text, stop)
    return members, at + 1


def _tagged_call(text: str, start: int, function: re.Match[str], call: ToolCall) -> list[_Place]:
    if function[1] != call.name:
        return []
    keys: set[str] = set()
    values: list[_Place] = []
    at = function.end()
    while (opener := _PARAMETER.match(text, at)) is not None:
        begin, stop = _value(text, opener.end(), call.arguments.get(opener[1]))
        keys.add(opener[1])
        values.append((begin, stop, "arguments"))
        at = _after_blanks(text, stop)
        if text.startswith(_END_VALUE, at):
            at = _after_blanks(text, at + len(_END_VALUE))
    is_opened = text.startswith(_OPEN, start)
    if not is_opened and not text.startswith(_END_FUNCTION, at):
        return []  # the mention of a function
    if keys != set(call.arguments):  # mended by a lenient parser
        return [(start, _call_end(text, at), "call")] if is_opened else []
    ended = _FUNCTION_END.match(text, at)
    return [(start, at if ended is None else ended.end(), "call"), *values]


def _value(text: str, begin: int, value: Json) -> tuple[int, int]:
    """Where the text of a parameter stands that was read as `value`."""
    start = begin + 1 if text.startswith("\n", begin) else begin
    if isinstance(value, str):
        stop = start + len(value)
        if text.startswith(value, start) and _VALUE_END.match(text, stop + text.startswith("\n", stop)):
            return start, stop
    stops: list[int] = []
    for end in _VALUE_END.finditer(text, start):
        stops.append(max(start, end.start() - text.startswith("\n", end.start() - 1)))
        if _reads_as(text[start : stops[-1]], value):
            return start, stops[-1]
    return start, stops[0] if stops else start


def _reads_as(text: str, value: Json) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _after_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _after(text: str, position: int, mark: str) -> int:
    if not text.startswith(mark, position):
        raise ValueError(f"expected {mark!r}")
    return _after_blanks(text, position + len(mark))
