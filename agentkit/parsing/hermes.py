"""Hermes calls, as Qwen2.5 and Qwen3 write them: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

import re
from collections.abc import Sequence

from agentkit.parsing._balance import Balance, Tag
from agentkit.parsing._session import Block, Session, cut_fault
from agentkit.parsing._strict_json import BadJson, Ending, find_end, read_json
from agentkit.protocols import CallFault, FaultStatus, Json, ParseSession, ToolCall, ToolSpec

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_SHAPE = 'expected {"name": <tool name>, "arguments": {...}}'
_TAG = re.compile(r"</?tool_call>")
_BLANKS = re.compile(r"\s*")
_SURPLUS = re.compile(r"[}\]\s]*</tool_call>")


class HermesParser:
    """JSON calls between `<tool_call>` tags.

    A block ends at the closer after its JSON value, so tags in strings are text. With `lenient`, common slips are
    mended instead of answered: Python literals, duplicate keys, surplus braces, `parameters` for `arguments`, a missing
    closer. A call that was cut is never mended.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient

    def begin(self, tools: Sequence[ToolSpec] = (), /) -> ParseSession:
        """Start on a new generation; the format reads the same whatever the tools are."""
        return Session(lambda text, is_cut: _Reader(text, is_cut, self._lenient))


class _Reader:
    def __init__(self, text: str, is_cut: bool, lenient: bool) -> None:
        self._text = text
        self._is_cut = is_cut
        self._lenient = lenient
        tags = [Tag(m.start(), m.end(), m.group() == _OPEN) for m in _TAG.finditer(text)]
        self._balance = Balance(tags)
        self._index = 0

    def find(self, position: int) -> int:
        return self._text.find(_OPEN, position)

    def skip(self, start: int) -> int:
        text = self._text
        position = self._after_blanks(start + len(_OPEN))
        ending, position = find_end(text, position, lenient=self._lenient)
        position = self._after_blanks(position)
        if ending is Ending.OPEN:
            return len(text) if self._is_cut else -1
        stop = position + len(_CLOSE)
        is_closed = text.startswith(_CLOSE, position) or (self._is_cut and _CLOSE.startswith(text[position:stop]))
        return min(stop, len(text)) if ending is Ending.CLOSED and is_closed else -1

    def stray(self, start: int, stop: int) -> tuple[int, ToolCall | CallFault] | None:
        if self._text.find(_CLOSE, start, stop) < 0:
            return None
        return stop, CallFault(
            FaultStatus.MALFORMED, f"{_CLOSE} without {_OPEN} before it", self._text[start:stop].strip()
        )

    def read(self, start: int) -> Block:
        text = self._text
        begin = self._after_blanks(start + len(_OPEN))
        if text.startswith(_CLOSE, begin):
            stop = begin + len(_CLOSE)
            return Block(stop, CallFault(FaultStatus.MALFORMED, f"empty tool call: {_SHAPE}", text[start:stop]))
        ending, end = find_end(text, begin, lenient=self._lenient)
        if ending is Ending.OPEN and self._is_cut:
            return Block(len(text), cut_fault(text, start))
        if ending is Ending.CLOSED:
            after = self._after_blanks(end)
            if text.startswith(_CLOSE, after):
                return self._block(start, after + len(_CLOSE), begin, end)
            if after == len(text) or text.startswith(_OPEN, after):
                return self._unclosed(start, after, begin, end)
            surplus = _SURPLUS.match(text, after) if self._lenient else None
            if surplus is not None:
                return self._block(start, surplus.end(), begin, end)
        return self._broken(start, begin, end)

    def _block(self, start: int, stop: int, begin: int, end: int) -> Block:
        attempt = _read_call(self._text[begin:end], self._text[start:stop], self._lenient)
        return Block(stop, attempt)

    def _unclosed(self, start: int, stop: int, begin: int, end: int) -> Block:
        """A whole value with no closer behind it."""
        if self._is_cut and stop == len(self._text):
            return Block(stop, cut_fault(self._text, start))
        block = self._block(start, stop, begin, end)
        if self._lenient:
            return block
        raw = self._text[start:stop]
        return Block(stop, CallFault(FaultStatus.UNCLOSED, f"missing {_CLOSE}", raw, block.attempt.name))

    def _broken(self, start: int, begin: int, position: int) -> Block:
        """A value that ends nowhere; `position` is where it stopped being JSON.

        The block goes on to the tag that balances its opener: what may be a call inside its value never runs.
        """
        text = self._text
        closer = self._closer_after(position)
        if closer is None:
            if self._is_cut:
                return Block(len(text), cut_fault(text, start))
            return Block(len(text), CallFault(FaultStatus.UNCLOSED, f"missing {_CLOSE}: {_SHAPE}", text[start:]))
        raw = text[start : closer.stop]
        try:
            read_json(text[begin : closer.start])
            reason = "cannot tell where it ends"
        except BadJson as error:
            reason = str(error)
        return Block(closer.stop, CallFault(FaultStatus.INVALID_JSON, f"invalid JSON in the tool call: {reason}", raw))

    def _closer_after(self, position: int) -> Tag | None:
        tags = self._balance.tags
        while self._index < len(tags) and tags[self._index].start < position:
            self._index += 1
        return self._balance.closer_from(self._index)

    def _after_blanks(self, position: int) -> int:
        match = _BLANKS.match(self._text, position)
        return position if match is None else match.end()


def _read_call(body: str, raw: str, lenient: bool) -> ToolCall | CallFault:
    try:
        value = read_json(body, lenient=lenient)
    except BadJson as error:
        return CallFault(FaultStatus.INVALID_JSON, f"invalid JSON in the tool call: {error}", raw)
    if not isinstance(value, dict):
        return CallFault(FaultStatus.MALFORMED, f"a tool call must be one object: {_SHAPE}", raw)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        found = "missing 'name'" if name is None else "'name' must be a non-empty string"
        return CallFault(FaultStatus.MISSING_NAME, f"{found}: {_SHAPE}", raw)
    surplus = sorted(key for key in value if key not in ("name", "arguments"))
    if surplus and not lenient:
        missing = "" if "arguments" in value else "missing 'arguments', "
        return CallFault(FaultStatus.MALFORMED, f"{missing}unexpected key {surplus[0]!r}: {_SHAPE}", raw, name)
    return _with_arguments(name, value.get("arguments", value.get("parameters")), raw, lenient)


def _with_arguments(name: str, arguments: Json, raw: str, lenient: bool) -> ToolCall | CallFault:
    if lenient and isinstance(arguments, str):
        try:
            arguments = read_json(arguments, lenient=True)
        except BadJson as error:
            return CallFault(FaultStatus.BAD_ARGUMENTS, f"'arguments' holds invalid JSON: {error}", raw, name)
    if arguments is None:
        return ToolCall("", name)
    if not isinstance(arguments, dict):
        return CallFault(
            FaultStatus.BAD_ARGUMENTS, f"'arguments' must be an object, found {type(arguments).__name__}", raw, name
        )
    return ToolCall("", name, arguments)
