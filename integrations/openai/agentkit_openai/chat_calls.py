"""The calls of a chat answer, put together from the pieces in which servers send them. Sans-IO.

One call is one slot. Which slot a piece belongs to is said by its `index`, where the server sends one; some leave it
out, some give every call the index 0 and only an id of its own, some repeat the name with every piece, some send calls
whole. What arguments say is read strictly, as at token level: whatever is no JSON object with a single reading becomes
a fault for the policy to read, and never runs.
"""

import json
from collections.abc import Mapping
from typing import Any, cast

from attrs import define, field

from agentkit.parsing._strict_json import BadJson, read_json  # one reading of arguments, at every level
from agentkit.protocols import CallFault, FaultStatus, Json, ToolCall, ToolSpec

_CUT = "the answer was cut before the tool call ended, so the call was not run: write a shorter call"
_SHAPE = 'expected {"name": <tool name>, "arguments": {...}}'
_LOOKS = 8  # how often a slot is read to see whether it is whole, where only that tells two calls apart


def paired(text: str) -> str:
    """`text` with the halves of each surrogate pair put together: some servers send them in two events."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return text


@define
class _Slot:
    id: str = ""
    names: list[str] = field(factory=list)
    pieces: list[str] = field(factory=list)
    whole: Mapping[str, Any] | None = None
    """Arguments that came as an object."""
    fault: str | None = None
    """Why this is no call, whatever else it says."""
    looks: int = 0

    def is_complete(self) -> bool:
        """Whether the arguments so far are one JSON object."""
        if self.whole is not None:
            return True
        if not self.pieces or not self.pieces[-1].rstrip().endswith("}") or self.looks >= _LOOKS:
            return False
        self.looks += 1
        try:
            return isinstance(read_json("".join(self.pieces)), dict)
        except BadJson:
            return False


class CallPieces:
    """Collects the pieces of the calls of one answer."""

    __slots__ = ("_by_index", "_slots")

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._by_index: dict[int, _Slot] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, piece: object, event: bytes) -> int:
        """Take one element of `tool_calls`, which came in `event`; how many characters it added."""
        if not isinstance(piece, dict):
            self._new().fault = f"a tool call must be an object, found {_kind(piece)}"
            return 0
        call = cast("Mapping[str, Any]", piece)
        function = call.get("function")
        if function is None and call.get("type") in (None, "function"):
            function = {}
        if not isinstance(function, dict):
            slot = self._slot(call, "", has_arguments=False)
            slot.fault = f"a tool call must be of type 'function', found {call.get('type')!r:.40}"
            return 0
        name, arguments = function.get("name"), function.get("arguments")
        slot = self._slot(call, name if isinstance(name, str) else "", has_arguments=bool(arguments))
        call_id = call.get("id")
        if isinstance(call_id, str) and call_id and not slot.id:
            slot.id = call_id
        return _fill(slot, name, arguments, event)

    def add_legacy(self, function: object, event: bytes) -> int:
        """Take a piece of `function_call`, which old servers send in place of `tool_calls`; an answer has one."""
        return self.add({"index": 0, "function": function}, event)

    def read(self, tools: Mapping[str, ToolSpec], *, is_cut: bool) -> tuple[ToolCall | CallFault, ...]:
        """The calls, in the order in which they began. Of an answer that was cut, the last is taken for cut too."""
        attempts = [_read(slot, tools) for slot in self._slots]
        if attempts and is_cut:
            slot = self._slots[-1]
            attempts[-1] = CallFault(FaultStatus.TRUNCATED, _CUT, _raw(slot), _name(slot, tools) or None, slot.id)
        return tuple(attempts)

    def _new(self) -> _Slot:
        slot = _Slot()
        self._slots.append(slot)
        return slot

    def _slot(self, call: Mapping[str, Any], name: str, *, has_arguments: bool) -> _Slot:
        index, call_id = call.get("index"), call.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        if type(index) is int:
            slot = self._by_index.get(index)
            if slot is None or _is_another(slot, name, call_id, has_arguments=has_arguments):
                slot = self._by_index[index] = self._new()
            return slot
        if call_id:
            known = next((slot for slot in reversed(self._slots) if slot.id == call_id), None)
            if known is not None:
                return self._new() if _is_repeat(known, name, has_arguments=has_arguments) else known
            if name or not self._slots:
                return self._new()
        if not self._slots:
            return self._new()
        slot = self._slots[-1]
        begins = bool(name) and bool(slot.names) and (has_arguments or bool(slot.pieces) or slot.whole is not None)
        return self._new() if begins and not _goes_on(slot, name) else slot


def _is_another(slot: _Slot, name: str, call_id: str, *, has_arguments: bool) -> bool:
    """Whether a piece with the index of `slot` begins a call of its own."""
    if not name:
        return False
    if call_id and slot.id:
        return call_id != slot.id
    return _is_repeat(slot, name, has_arguments=has_arguments)


def _is_repeat(slot: _Slot, name: str, *, has_arguments: bool) -> bool:
    return bool(name) and has_arguments and bool(slot.names) and slot.is_complete()


def _goes_on(slot: _Slot, name: str) -> bool:
    """Whether a piece that repeats the name goes on with the arguments of `slot`, where nothing else would say so."""
    return slot.names[0] == name and bool(slot.pieces) and not slot.is_complete()


def _fill(slot: _Slot, name: object, arguments: object, event: bytes) -> int:
    added = 0
    if isinstance(name, str) and name:
        slot.names.append(name)
        added += len(name)
    elif name is not None and not isinstance(name, str):
        slot.fault = f"the name of a tool must be a text, found {_kind(name)}"
    if isinstance(arguments, str):
        if arguments:
            slot.pieces.append(arguments)
            added += len(arguments)
    elif isinstance(arguments, dict):
        if slot.whole is not None or slot.pieces:
            slot.fault = "the arguments came both as an object and as something else"
        slot.whole = cast("Mapping[str, Any]", arguments)
        try:  # the quick reading of the event would hide a repeated key
            read_json(event.decode("utf-8", "replace"))
        except BadJson as error:
            slot.fault = f"invalid JSON in the tool call: {error}"
        added += len(event)
    elif arguments is not None:
        slot.fault = f"'arguments' must be a JSON object, found {_kind(arguments)}"
    return added


def _read(slot: _Slot, tools: Mapping[str, ToolSpec]) -> ToolCall | CallFault:
    name = _name(slot, tools)
    if slot.fault is not None:
        return CallFault(FaultStatus.MALFORMED, slot.fault, _raw(slot), name or None, slot.id)
    if not name:
        return CallFault(FaultStatus.MISSING_NAME, f"missing 'name': {_SHAPE}", _raw(slot), None, slot.id)
    if slot.whole is not None:
        if slot.pieces:
            reason = "the arguments came both as an object and as a text"
            return CallFault(FaultStatus.MALFORMED, reason, _raw(slot), name, slot.id)
        return ToolCall(slot.id, name, slot.whole)
    text = paired("".join(slot.pieces))
    if not text.strip():
        spec = tools.get(name)
        if spec is not None and not spec.parameters.get("properties"):  # there is nothing that could have been meant
            return ToolCall(slot.id, name)
        reason = "the arguments of the tool call are empty: expected a JSON object"
        return CallFault(FaultStatus.INVALID_JSON, reason, text, name, slot.id)
    try:
        arguments: Json = read_json(text)
    except BadJson as error:
        reason = f"invalid JSON in the arguments of the tool call: {error}"
        return CallFault(FaultStatus.INVALID_JSON, reason, text, name, slot.id)
    if not isinstance(arguments, dict):
        reason = f"'arguments' must be a JSON object, found {_kind(arguments)}"
        return CallFault(FaultStatus.BAD_ARGUMENTS, reason, text, name, slot.id)
    return ToolCall(slot.id, name, arguments)


def _name(slot: _Slot, tools: Mapping[str, ToolSpec]) -> str:
    """The name in its pieces: all of them together, or the one that was repeated with every piece."""
    if not slot.names:
        return ""
    first, joined = slot.names[0], "".join(slot.names)
    is_repeated = all(piece == first for piece in slot.names)
    return first if is_repeated and not (joined in tools and first not in tools) else joined


def _raw(slot: _Slot) -> str:
    if slot.whole is None:
        return "".join(slot.pieces)
    return json.dumps(slot.whole, ensure_ascii=False)


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "a list" if isinstance(value, list) else "an object"
