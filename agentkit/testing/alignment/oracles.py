"""What a chat template itself writes: full renders, made without any renderer of ours.

An oracle knows no bridge, no ledger and no certificate. It renders a whole conversation afresh and encodes it as the
tokenizer's own library does, so text that spells a control token becomes one: where that happens, it is no oracle.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import evolve

from agentkit.errors import ConfigError
from agentkit.protocols import ChatTemplate, Json, Message, Tokenizer, ToolCall, ToolSpec, user

_SURROGATES = re.compile("[\ud800-\udfff]")


@runtime_checkable
class Oracle(Protocol):
    """The full render of a conversation, as text and as ids. Errors of the template come out as it raised them."""

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The text; with `generation_prompt`, up to where the policy starts to sample."""
        ...

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool
    ) -> Sequence[int]:
        """The ids of that text."""
        ...


class HFOracle:
    """`apply_chat_template` of a `transformers` tokenizer, template, ids and all.

    `kwargs` go to every rendering. Arguments of calls go in as mappings, or as JSON text where the template can only
    write that; reasoning as `reasoning_content` and `thinking`; a lone surrogate as U+FFFD, since no encoder takes one.
    """

    def __init__(self, hf: Any, **kwargs: object) -> None:
        if not callable(getattr(hf, "apply_chat_template", None)):
            raise ConfigError(f"expected a tokenizer with apply_chat_template, found {type(hf).__name__}")
        self._hf = hf
        self._kwargs = kwargs
        self._writes: Callable[[Any], Any] = _mutable
        if not self._shows_arguments():
            self._writes = lambda arguments: json.dumps(_mutable(arguments), ensure_ascii=False)
            if not self._shows_arguments():
                self._writes = _mutable

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The text that `transformers` renders."""
        return str(self._apply(messages, tools, generation_prompt, tokenize=False))

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool
    ) -> Sequence[int]:
        """The ids that `transformers` makes of it."""
        ids = self._apply(messages, tools, generation_prompt, tokenize=True, return_dict=False)
        return [int(each) for each in ids]

    def _apply(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool, **how: object
    ) -> Any:
        return self._hf.apply_chat_template(
            [_wire(printable(message), self._writes) for message in messages],
            tools=[{"type": "function", "function": _function(tool)} for tool in tools] or None,
            add_generation_prompt=generation_prompt,
            **how,
            **self._kwargs,
        )

    def _shows_arguments(self) -> bool:
        """Whether the template writes the arguments of calls, and not as Python does."""
        said = Message("assistant", "", (ToolCall("probe0000", "probe", {"probe_key": "probe_value"}),))
        try:
            text = self.render([user("."), said], (), generation_prompt=False)
        except Exception:  # it may refuse arguments of this kind, or a call without an answer
            return False
        return "probe_value" in text and "{'probe_key'" not in text


class TemplateOracle:
    """A `ChatTemplate` over any tokenizer; the stretches between control tokens are encoded whole."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        longest_first = sorted(tokenizer.control, key=len, reverse=True)
        self._controls = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The text that the template writes."""
        return self._template([printable(each) for each in messages], tools, generation_prompt=generation_prompt)

    def encode(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool
    ) -> Sequence[int]:
        """The ids of that text."""
        text = self.render(messages, tools, generation_prompt=generation_prompt)
        ids: list[int] = []
        for piece in self._controls.split(text) if self._controls else [text]:
            if piece in self._tokenizer.control:
                ids.append(self._tokenizer.control[piece])
            elif piece:
                ids.extend(self._tokenizer.encode(piece))
        return ids


def printable(message: Message) -> Message:
    """`message` with U+FFFD for each lone surrogate."""

    def mend(text: str) -> str:
        return _SURROGATES.sub("\ufffd", text)

    return evolve(
        message,
        content=mend(message.content),
        reasoning=None if message.reasoning is None else mend(message.reasoning),
        tool_calls=tuple(ToolCall(call.id, call.name, _mended(call.arguments, mend)) for call in message.tool_calls),
    )


def _mended(value: Any, mend: Any) -> Any:
    if isinstance(value, str):
        return mend(value)
    if isinstance(value, Mapping):
        return {mend(key): _mended(item, mend) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_mended(item, mend) for item in value]
    return value


def _wire(message: Message, writes: Callable[[Any], Any]) -> dict[str, Any]:
    optional = {
        "reasoning_content": message.reasoning,
        "thinking": message.reasoning,
        "tool_call_id": message.tool_call_id,
        "name": message.name,
        "tool_calls": [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": writes(call.arguments)}}
            for call in message.tool_calls
        ]
        or None,
    }
    return {
        "role": message.role,
        "content": message.content,
        **{key: value for key, value in optional.items() if value is not None},
    }


def _function(tool: ToolSpec) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parameters": _mutable(tool.parameters)}


def _mutable(value: Json) -> Any:
    """Dicts and lists: templates ask whether something is a mapping, and `tojson` takes no others."""
    if isinstance(value, Mapping):
        return {key: _mutable(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_mutable(item) for item in value]
    return value
