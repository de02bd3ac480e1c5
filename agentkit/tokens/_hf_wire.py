"""Messages and tools in the form that chat templates of `transformers` read: JSON, and of its plain types alone.

Templates come with models, from anyone; a subclass of `str` may have methods that they must not get hold of.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec

_SCALARS = (str, int, float, bool)


def content_as_text(message: Message) -> str | list[dict[str, str]]:
    """The content of a message: its text, or a list of pieces where it shows media."""
    return content_as_list(message) if message.parts else _text(message.content)


def content_as_list(message: Message) -> list[dict[str, str]]:
    """The content of a message as a list of pieces, media as no more than their kind."""
    parts = message.parts or (message.content,)
    return [{"type": "text", "text": _text(part)} if isinstance(part, str) else {"type": part.kind} for part in parts]


def wire_message(
    message: Message, call: Callable[[ToolCall], dict[str, Json]], content: Callable[[Message], Any] = content_as_text
) -> dict[str, Any]:
    """`message`; reasoning goes under both names that templates know it by."""
    wire: dict[str, Any] = {"role": _text(message.role), "content": content(message)}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": _text(each.id), "type": "function", "function": call(each)} for each in message.tool_calls
        ]
    if message.reasoning is not None:
        wire["reasoning_content"] = wire["thinking"] = _text(message.reasoning)
    if message.tool_call_id is not None:
        wire["tool_call_id"] = _text(message.tool_call_id)
    if message.name is not None:
        wire["name"] = _text(message.name)
    return wire


def call_as_mapping(call: ToolCall) -> dict[str, Json]:
    """The function of a call, its arguments as a mapping."""
    return {"name": _text(call.name), "arguments": _plain(call.arguments)}


def call_as_text(call: ToolCall) -> dict[str, Json]:
    """The function of a call, its arguments as JSON text."""
    return {"name": _text(call.name), "arguments": json.dumps(_plain(call.arguments), ensure_ascii=False)}


def wire_tool(tool: ToolSpec) -> dict[str, Any]:
    """`tool` as an OpenAI function."""
    function = {
        "name": _text(tool.name),
        "description": _text(tool.description),
        "parameters": _plain(tool.parameters),
    }
    return {"type": "function", "function": function}


def _plain(value: object) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_text(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else f"<{type(value).__name__}>"


def _text(text: str) -> str:
    return text if type(text) is str else str.__str__(text)
