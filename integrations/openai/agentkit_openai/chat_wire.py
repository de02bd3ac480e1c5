"""The conversation as a chat API takes it: JSON that grows with what is new, and is never encoded twice. Sans-IO.

Messages never change and a history nearly always grows at its end, so the JSON of each message is kept, trajectory by
trajectory, and what the next request adds is all that is encoded. Whatever else happened to the history (a rewrite, a
fork, an eviction), messages are compared by identity, and from the first that differs they are encoded anew.
"""

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from operator import is_

from attrs import define, field

from agentkit.errors import ModelError
from agentkit.protocols import Json, Message, ToolSpec
from agentkit_openai.chat_media import content_of

_TOOLS_KEPT = 64
_CONVERSATION_BYTES = 400  # the objects around what is kept of a trajectory
_MESSAGE_BYTES = 200  # and around each of its messages, whose text is kept beside its JSON


@define
class _Conversation:
    """The JSON of one trajectory's messages; a piece after the first begins with its comma."""

    said: list[Message] = field(factory=list)
    pieces: list[bytes] = field(factory=list)
    size: int = _CONVERSATION_BYTES
    tools: tuple[ToolSpec, ...] = ()
    tools_json: bytes = b""


class ChatWire:
    """Encodes messages and tools, and keeps what it encoded of the trajectories asked for last, up to `cache_bytes`.

    The reasoning of earlier turns is left out, as most servers want it, unless `reasoning_field` names the field to
    send it in. System messages of the opening come first, whatever their place.
    """

    def __init__(self, *, reasoning_field: str | None = None, cache_bytes: int = 256 << 20) -> None:
        self._reasoning_field = reasoning_field
        self._cache_bytes = cache_bytes
        self._conversations: OrderedDict[str, _Conversation] = OrderedDict()
        self._tools_json: OrderedDict[tuple[int, ...], tuple[tuple[ToolSpec, ...], bytes]] = OrderedDict()
        self._held_bytes = 0
        self._encoded_bytes = 0

    @property
    def encoded_bytes(self) -> int:
        """How many bytes of JSON were made so far."""
        return self._encoded_bytes

    @property
    def held_bytes(self) -> int:
        """How much memory is taken by what is kept: the JSON, and the messages it was made of."""
        return self._held_bytes

    def pieces(
        self, request_id: str, messages: Sequence[Message], tools: tuple[ToolSpec, ...]
    ) -> tuple[list[bytes], bytes]:
        """The elements of the array `messages`, to be put one after another, and the array `tools`, empty for none.

        Raises:
            ModelError: a message cannot be sent; which one, and why.
        """
        kept = self._conversations.pop(request_id, None)
        before = 0 if kept is None else kept.size
        kept = kept or _Conversation()
        try:
            self._extend(kept, _in_wire_order(messages[0 : len(messages)]))
            if tools is not kept.tools:
                encoded = self._tools(tools)
                kept.size += len(encoded) - len(kept.tools_json)
                kept.tools, kept.tools_json = tools, encoded
            return list(kept.pieces), kept.tools_json  # a copy: the next turn may come while these are being sent
        finally:
            self._held_bytes += kept.size - before
            self._conversations[request_id] = kept
            self._evict()

    def _extend(self, kept: _Conversation, said: list[Message]) -> None:
        same = len(kept.said)
        if same > len(said) or not all(map(is_, kept.said, said)):
            same = next(
                (at for at, (old, new) in enumerate(zip(kept.said, said, strict=False)) if old is not new),
                min(same, len(said)),
            )
            kept.size -= sum(map(_memory, kept.pieces[same:]))
            del kept.said[same:], kept.pieces[same:]
        for at in range(same, len(said)):
            piece = self._message(said[at], at)
            kept.said.append(said[at])
            kept.pieces.append(piece)
            kept.size += _memory(piece)

    def _message(self, message: Message, at: int) -> bytes:
        wire: dict[str, Json] = {"role": message.role, "content": content_of(message)}
        try:
            if message.reasoning and self._reasoning_field:
                wire[self._reasoning_field] = message.reasoning
            if message.tool_calls:
                wire["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": _JSON.encode(call.arguments)},
                    }
                    for call in message.tool_calls
                ]
            if message.role == "tool":
                if message.tool_call_id is not None:
                    wire["tool_call_id"] = message.tool_call_id
                if message.name is not None:
                    wire["name"] = message.name
            text = _JSON.encode(wire)
        except (ValueError, TypeError, RecursionError) as error:
            raise ModelError(f"messages[{at}] of role {message.role!r} cannot be sent as JSON: {error}") from error
        piece = _utf8(f",{text}" if at else text)
        self._encoded_bytes += len(piece)
        return piece

    def _tools(self, tools: tuple[ToolSpec, ...]) -> bytes:
        """Agents make a tuple of tools for each rollout, nearly always of the same tools: those are encoded once."""
        if not tools:
            return b""
        key = tuple(map(id, tools))
        if key in self._tools_json:
            self._tools_json.move_to_end(key)
            return self._tools_json[key][1]
        wire = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools
        ]
        encoded = encode(wire, what="tools")
        self._encoded_bytes += len(encoded)
        self._tools_json[key] = (tools, encoded)  # the tools are kept, so that no other object can have their id
        if len(self._tools_json) > _TOOLS_KEPT:
            self._tools_json.popitem(last=False)
        return encoded

    def _evict(self) -> None:
        while self._held_bytes > self._cache_bytes and self._conversations:
            _, oldest = self._conversations.popitem(last=False)
            self._held_bytes -= oldest.size


def _memory(piece: bytes) -> int:
    return 2 * len(piece) + _MESSAGE_BYTES


def encode(value: object, *, what: str) -> bytes:
    """`value` as compact JSON in UTF-8; what UTF-8 cannot hold, half of a surrogate pair, becomes U+FFFD.

    Raises:
        ModelError: it holds something that JSON cannot.
    """
    try:
        return _utf8(_JSON.encode(value))
    except (ValueError, TypeError, RecursionError) as error:
        raise ModelError(f"{what} cannot be sent as JSON: {error}") from error


def _in_wire_order(messages: Sequence[Message]) -> list[Message]:
    """Templates look for the system message at the top only. What comes after the first answer stays in its place."""
    said = list(messages)
    opening = next((at for at, message in enumerate(said) if message.role in ("assistant", "tool")), len(said))
    systems = sum(message.role == "system" for message in said[:opening])
    if all(message.role == "system" for message in said[:systems]):
        return said
    said[:opening] = sorted(said[:opening], key=lambda message: message.role != "system")  # stable
    return said


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # a file name, or what a model's bytes were taken for
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return list(value)
    raise TypeError(f"a {type(value).__name__} is no JSON value")


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
