"""Messages and tools in the form that chat templates of `transformers` read."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec


def content_as_text(message: Message) -> str | list[dict[str, str]]:
    """The content of a message: its text, or a list of pieces where it shows media."""
    return content_as_list(message) if message.parts else message.content


def content_as_list(message: Message) -> list[dict[str, str]]:
    """The content of a message as a list of pieces, media as no more than their kind."""
    parts = message.parts or (message.content,)
    return [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in parts]


def wire_message(
    message: Message, call: Callable[[ToolCall], dict[str, Json]], content: Callable[[Message], Any] = content_as_text
) -> dict[str, Any]:
    """`message`; reasoning goes under both names that templates know it by."""
    wire: dict[str, Any] = {"role": message.role, "content": content(message)}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": each.id, "type": "function", "function": call(each)} for each in message.tool_calls
        ]
    if message.reasoning is not None:
        wire["reasoning_content"] = wire["thinking"] = message.reasoning
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        wire["name"] = message.name
    return wire


def call_as_mapping(call: ToolCall) -> dict[str, Json]:
    """The function of a call, its arguments as a mapping."""
    return {"name": call.name, "arguments": _plain(call.arguments)}


def call_as_text(call: ToolCall) -> dict[str, Json]:
    """The function of a call, its arguments as JSON text."""
    return {"name": call.name, "arguments": json.dumps(_plain(call.arguments), ensure_ascii=False)}


def wire_tool(tool: ToolSpec) -> dict[str, Any]:
    """`tool` as an OpenAI function."""
    function = {"name": tool.name, "description": tool.description, "parameters": _plain(tool.parameters)}
    return {"type": "function", "function": function}


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
