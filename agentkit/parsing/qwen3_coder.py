r"""Qwen3-Coder calls: `<tool_call>\n<function=N>\n<parameter=K>\nV\n</parameter>\n</function>\n</tool_call>`.

It is not XML: nothing is escaped, and a value may hold any of these tags. Three rules find the ends.

- Only tags that stand together count for a block: `<tool_call>` before `<function=`, and `</tool_call>` after
  `</function>` (or after a tag that shows `</function>` was forgotten). Balance decides among these.
- Only a `</parameter>` before another parameter or before the end of the function ends a value, and not if it
  balances a `<parameter=...>` inside the value. In a value on lines of its own, only openers alone on a line count.
- Where two readings are left, the block is a fault: a call that may be part of a value never runs.
"""

import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from agentkit.parsing._balance import Balance, Tag
from agentkit.parsing._session import Block, Session, cut_fault
from agentkit.parsing._typed_text import BadText, json_types, read_text
from agentkit.protocols import CallFault, FaultStatus, Json, ParseSession, ToolCall, ToolSpec

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"
_END = "</function>"
_END_VALUE = "</parameter>"
_SHAPE = "expected <tool_call>, <function=NAME>, <parameter=KEY> value </parameter>, </function>, </tool_call>"
# The optional group: a closer straight before `<function=` is where a model forgot the next opener.
_TAGS_TOGETHER = re.compile(
    r"<tool_call>(?=\s*<function=)"
    r"|(?:</function>|</parameter>|<function=[^<>\n]*>)\s*</tool_call>(?P<forgotten>(?=\s*<function=))?"
)
_PLAIN_TAG = re.compile(r"</?tool_call>")
_FUNCTION = re.compile(r"\s*<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_PARAMETER_TAG = re.compile(r"</parameter>|<parameter=([^<>\n]*)>")
_BARE_FUNCTION = re.compile(r"<function=([^<>\n]*)>\s*(?:<parameter=|</function>|\Z)")
_BLANKS = re.compile(r"\s*")


class Qwen3CoderParser:
    """Calls as tags, values as text that the tool's schema types.

    With `lenient`, common slips are mended instead of answered: a missing `<tool_call>`, `</function>` or
    `</parameter>`, duplicate parameters (the last wins), Python literals. A call that was cut is never mended.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient

    def begin(self, tools: Sequence[ToolSpec] = (), /) -> ParseSession:
        """Start on a new generation; the schemas of `tools` type the values."""
        schemas = {tool.name: tool.parameters for tool in tools}
        return Session(lambda text, is_cut: _Reader(text, is_cut, schemas, self._lenient))


class _Reader:
    def __init__(self, text: str, is_cut: bool, schemas: Mapping[str, Mapping[str, Json]], lenient: bool) -> None:
        self._text = text
        self._is_cut = is_cut
        self._schemas = schemas
        self._lenient = lenient
        self._together = Balance(_tags_together(text))
        self._plain = Balance([Tag(m.start(), m.end(), m.group() == _OPEN) for m in _PLAIN_TAG.finditer(text)])
        self._indices = {tag.start: n for n, tag in enumerate(self._together.tags) if tag.is_open}
        self._starts = sorted({tag.start for tag in self._plain.tags if tag.is_open} | set(self._indices))

    def find(self, position: int) -> int:
        n = bisect_left(self._starts, position)
        return self._starts[n] if n < len(self._starts) else -1

    def skip(self, start: int) -> int:
        index = self._indices.get(start)
        if index is None:
            return -1
        extent = self._together.extent(index)
        if extent is None or extent.first is None:
            return len(self._text) if self._is_cut else -1
        return extent.closer.stop if extent.is_clear else -1

    def stray(self, start: int, stop: int) -> tuple[int, ToolCall | CallFault] | None:
        bare = _BARE_FUNCTION.search(self._text, start, stop)
        if bare is not None:
            raw = self._text[bare.start() : stop]
            if self._is_cut and stop == len(self._text) and _END not in raw:
                return bare.start(), cut_fault(self._text, bare.start(), bare[1])
            end = self._text.rfind(_END, bare.start(), stop)
            if self._lenient and end >= 0:
                return bare.start(), self._read_function(bare.start(), end, raw, is_ended=True)
            reason = f"missing {_OPEN} before <function={bare[1]}>"
            return bare.start(), CallFault(FaultStatus.MALFORMED, reason, raw.rstrip(), bare[1])
        if self._text.find(_CLOSE, start, stop) < 0:
            return None
        reason = f"{_CLOSE} without {_OPEN} before it"
        return stop, CallFault(FaultStatus.MALFORMED, reason, self._text[start:stop].strip())

    def read(self, start: int) -> Block:
        text = self._text
        index = self._indices.get(start)
        if index is None:
            return self._broken(start, f"no <function= in the tool call: {_SHAPE}")
        header = _FUNCTION.match(text, self._together.tags[index].stop)
        name = header[1] if header is not None else None
        extent = self._together.extent(index)
        if extent is None:
            return self._broken(start, f"no {_END} before {_CLOSE}", name)
        closer = extent.closer
        if self._is_cut and (extent.first is None or not self._ends_clean(closer.stop)):
            # What follows may be the rest of a value that quotes a closer.
            return Block(len(text), cut_fault(text, start, name))
        raw = text[start : closer.stop]
        if extent.first is None:
            reason = f"not closed before the next {_OPEN}"
            return Block(closer.stop, CallFault(FaultStatus.UNCLOSED, reason, raw, name))
        # Between the first closer that fits and the last there may be a call, with its opener or without.
        if text.find("<function=", extent.first.stop, closer.start) >= 0:
            reason = "tags of tool calls inside a value: cannot tell where the call ends"
            return Block(closer.stop, CallFault(FaultStatus.MALFORMED, reason, raw, name))
        if not text.startswith(_OPEN, start) and not self._lenient:
            reason = f"missing {_OPEN} before <function={name}>"
            return Block(closer.stop, CallFault(FaultStatus.MALFORMED, reason, raw, name))
        is_ended = text.startswith(_END, closer.start)
        end = closer.start if is_ended else text.index(">", closer.start) + 1
        return Block(closer.stop, self._read_function(self._together.tags[index].stop, end, raw, is_ended=is_ended))

    def _ends_clean(self, position: int) -> bool:
        after = _end_of_blanks(self._text, position)
        return after == len(self._text) or self.find(position) in range(position, after + 1)

    def _broken(self, start: int, reason: str, name: str | None = None) -> Block:
        """A block without the tags that end one: it goes on to the tag that balances its opener."""
        text = self._text
        if self._is_cut and name is not None:
            return Block(len(text), cut_fault(text, start, name))
        after = start + len(_OPEN) if text.startswith(_OPEN, start) else start
        tags = self._plain.tags
        closer = self._plain.closer_from(bisect_left(tags, after, key=lambda tag: tag.start))
        if closer is None:
            if self._is_cut:
                return Block(len(text), cut_fault(text, start, name))
            return Block(len(text), CallFault(FaultStatus.UNCLOSED, f"missing {_CLOSE}", text[start:], name))
        return Block(closer.stop, CallFault(FaultStatus.MALFORMED, reason, text[start : closer.stop], name))

    def _read_function(self, start: int, end: int, raw: str, *, is_ended: bool) -> ToolCall | CallFault:
        """The call whose `<function=` header is at `start` and whose parameters end at `end`."""
        text = self._text
        header = _FUNCTION.match(text, start, end)
        if header is None or not header[1].strip():
            return CallFault(FaultStatus.MISSING_NAME, f"<function=NAME> needs a name: {_SHAPE}", raw)
        name = header[1]
        arguments: dict[str, Json] = {}
        schema = self._schemas.get(name, {})
        position = _end_of_blanks(text, header.end())
        is_mended = False
        while position < end:
            opener = _PARAMETER.match(text, position, end)
            if opener is None:
                found = text[position : min(position + 40, end)]
                reason = f"expected <parameter=KEY> or {_END}, found {found!r}"
                return CallFault(FaultStatus.MALFORMED, reason, raw, name)
            key = opener[1]
            stop, position = self._value_end(opener.end(), end)
            if stop < 0 and self._lenient and not is_mended:
                # Once in a call: each try may look at all that is left of it.
                is_mended = True
                stop = position = self._next_known(opener.end(), end, schema)
            if stop < 0:
                return CallFault(FaultStatus.MALFORMED, f"parameter {key!r} not closed", raw, name)
            if key in arguments and not self._lenient:
                return CallFault(FaultStatus.BAD_ARGUMENTS, f"duplicate parameter {key!r}", raw, name)
            try:
                arguments[key] = self._value(opener.end(), stop, key, schema)
            except BadText as error:
                return CallFault(FaultStatus.BAD_ARGUMENTS, f"parameter {key!r} {error}", raw, name)
        if not is_ended and not self._lenient:
            return CallFault(FaultStatus.MALFORMED, f"missing {_END}", raw, name)
        return ToolCall("", name, arguments)

    def _value(self, start: int, stop: int, key: str, schema: Mapping[str, Json]) -> Json:
        properties = schema.get("properties")
        declared = properties.get(key) if isinstance(properties, Mapping) else None
        text = self._text[start:stop].removeprefix("\n").removesuffix("\n")
        return read_text(text, json_types(declared, schema), lenient=self._lenient)

    def _value_end(self, start: int, end: int) -> tuple[int, int]:
        """Where the value from `start` ends and where what follows its closer starts; (-1, end) if nowhere."""
        text = self._text
        depth = 0
        for tag in _PARAMETER_TAG.finditer(text, start, end):
            if tag[1] is not None:
                depth += self._opens_value(tag, start)
            elif depth:
                depth -= 1
            else:
                after = _end_of_blanks(text, tag.end())
                if after >= end or _PARAMETER.match(text, after, end) is not None:
                    return tag.start(), min(after, end)
        return -1, end

    def _opens_value(self, tag: re.Match[str], start: int) -> bool:
        """Whether `tag`, in a value from `start`, counts as an opener and not as a mention of one."""
        text = self._text
        is_framed = text.startswith("\n", start)
        return not is_framed or (text[tag.start() - 1] == "\n" and text.startswith("\n", tag.end()))

    def _next_known(self, start: int, end: int, schema: Mapping[str, Json]) -> int:
        """Where the next parameter that the tool has starts, or -1."""
        known = schema.get("properties")
        for tag in _PARAMETER.finditer(self._text, start, end):
            if isinstance(known, Mapping) and tag[1] in known and self._opens_value(tag, start):
                return tag.start()
        return -1


def _tags_together(text: str) -> list[Tag]:
    tags: list[Tag] = []
    for match in _TAGS_TOGETHER.finditer(text):
        is_open = match.group() == _OPEN
        tags.append(Tag(match.start(), match.end(), is_open))
        if match["forgotten"] is not None:
            tags.append(Tag(match.end(), match.end(), is_open=True))
    return tags


def _end_of_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()
