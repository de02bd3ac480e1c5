"""Chat templates as plain functions, after the shapes of real families, for `ByteTokenizer`.

They differ where real ones do: how tool results are grouped, what separates turns, whether content is stripped, whether
the stop token is the next header, and whether earlier thinking is kept. The wording is ours.
"""

import json
from collections.abc import Mapping, Sequence

from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec


def chatml(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """ChatML with calls as JSON in `<tool_call>` and the results of a turn in one user turn. Append-only."""
    return _chatml(messages, tools, generation_prompt, keep_reasoning_from=0)


def qwen3(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """As `chatml`, but thinking before the last user message is dropped: a user message rewrites the history."""
    last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=0)
    return _chatml(messages, tools, generation_prompt, keep_reasoning_from=last_user)


def llama3(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Headers and blank lines; content is stripped; each tool result is a turn of its own. Append-only."""
    parts = ["<|begin_of_text|>"]
    if tools:
        parts.append(_headed("system", _tool_block(tools)))
    for message in messages:
        if message.role == "assistant":
            body = "".join(_JSON.encode(_call(call)) + "\n" for call in message.tool_calls)
            thought = f"<think>{message.reasoning}</think>" if message.reasoning is not None else ""
            parts.append(_headed("assistant", thought + message.content.strip() + body.rstrip("\n")))
        else:
            parts.append(_headed("ipython" if message.role == "tool" else message.role, message.content.strip()))
    if generation_prompt:
        parts.append("<|start_header_id|>assistant<|end_header_id|>\n\n")
    return "".join(parts)


def glm(messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
    """Every turn starts with its role's token, which also is what stops the turn before. Append-only."""
    parts = []
    if tools:
        parts.append("<|system|>\n" + _tool_block(tools))
    previous = ""
    for message in messages:
        if message.role == "assistant":
            thought = "" if message.reasoning is None else f"<think>{message.reasoning}</think>\n"
            calls = "".join(f"\n<tool_call>{_JSON.encode(_call(call))}</tool_call>" for call in message.tool_calls)
            parts.append(f"<|assistant|>\n{thought}{message.content}{calls}")
        elif message.role == "tool":
            header = "" if previous == "tool" else "<|observation|>"
            parts.append(f"{header}\n<tool_response>\n{message.content}\n</tool_response>")
        else:
            parts.append(f"<|{message.role}|>\n{message.content}")
        previous = message.role
    if generation_prompt:
        parts.append("<|assistant|>\n")
    return "".join(parts)


def _chatml(
    messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool, *, keep_reasoning_from: int
) -> str:
    parts: list[str] = []
    opening = messages[0].content if messages and messages[0].role == "system" else None
    if tools:
        block = _tool_block(tools)
        opening = block if opening is None else f"{opening}\n\n{block}"
    if opening is not None:
        parts.append(f"<|im_start|>system\n{opening}<|im_end|>\n")
    for i, message in enumerate(messages):
        if message.role == "assistant":
            reasoning = message.reasoning if i >= keep_reasoning_from else None
            parts.append(f"<|im_start|>assistant\n{_hermes(message, reasoning)}<|im_end|>\n")
        elif message.role == "tool":
            if i == 0 or messages[i - 1].role != "tool":
                parts.append("<|im_start|>user")
            parts.append(f"\n<tool_response>\n{message.content}\n</tool_response>")
            if i + 1 == len(messages) or messages[i + 1].role != "tool":
                parts.append("<|im_end|>\n")
        elif message.role == "user" or i > 0:
            parts.append(f"<|im_start|>{message.role}\n{message.content}<|im_end|>\n")
    if generation_prompt:
        parts.append("<|im_start|>assistant\n")
    return "".join(parts)


def _hermes(message: Message, reasoning: str | None) -> str:
    parts = [] if reasoning is None else [f"<think>\n{reasoning}\n</think>\n\n"]
    parts.append(message.content)
    for index, call in enumerate(message.tool_calls):
        newline = "\n" if index or message.content else ""
        parts.append(f"{newline}<tool_call>\n{_JSON.encode(_call(call))}\n</tool_call>")
    return "".join(parts)


def _headed(role: str, content: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"


def _tool_block(tools: Sequence[ToolSpec]) -> str:
    functions = "\n".join(
        _JSON.encode({"name": tool.name, "description": tool.description, "parameters": tool.parameters})
        for tool in tools
    )
    return (
        "# Tools\n\nThese functions can be called:\n"
        f"{functions}\n\n"
        "A call is a JSON object with the keys name and arguments, each call in its own pair of tags:\n"
        '<tool_call>\n{"name": ..., "arguments": {...}}\n</tool_call>'
    )


def _call(call: ToolCall) -> dict[str, Json]:
    return {"name": call.name, "arguments": call.arguments}


def _open(value: Json) -> Json:
    """A mapping or sequence of a kind that the encoder does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"a call or a schema holds {type(value).__name__}, which is no JSON value")


_JSON = json.JSONEncoder(ensure_ascii=False, default=_open)
