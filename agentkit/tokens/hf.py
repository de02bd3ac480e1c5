"""Tokenizers and chat templates of Hugging Face `transformers`, as the Protocols here want them.

Pass in a fast tokenizer that you loaded yourself; nothing here loads or downloads one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols.messages import Json, Message, ToolSpec


class FastTokenizer(Protocol):
    """What is used of `transformers.PreTrainedTokenizerFast`."""

    backend_tokenizer: Any
    apply_chat_template: Callable[..., Any]


class HFTokenizer:
    """A `Tokenizer` over a fast tokenizer, special and other added tokens all kept apart from plain text.

    `split_special_tokens` is not enough for that: it leaves added tokens that are not marked special (`<think>`,
    `<tool_call>`) reachable from text. So text is encoded by a copy without any added token; those made of white space
    alone stay, for they structure nothing.
    """

    def __init__(self, hf: FastTokenizer) -> None:
        """Builds the copy: about a second for 150,000 tokens.

        Raises:
            MissingExtraError: `tokenizers` is not installed.
            ConfigError: `hf` is no fast tokenizer, or has control tokens that swallow the white space around them.
        """
        backend = getattr(hf, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"expected a fast tokenizer (with backend_tokenizer), found {type(hf).__name__}")
        module = require("tokenizers", extra="hf", purpose="HFTokenizer")
        description = json.loads(backend.to_str())
        added = description["added_tokens"]
        control = [token for token in added if not token["content"].isspace()]
        for token in control:
            if token["lstrip"] or token["rstrip"]:
                raise ConfigError(f"control token {token['content']!r} swallows white space, which is not supported")
        description["added_tokens"] = [token for token in added if token["content"].isspace()]
        description["post_processor"] = None
        _forget(description["model"], {token["content"] for token in control})
        self._plain = module.Tokenizer.from_str(json.dumps(description))
        self._whole = backend
        self._control = MappingProxyType({token["content"]: int(token["id"]) for token in control})

    @property
    def control(self) -> Mapping[str, int]:
        """Every added token by its text, whether marked special or not."""
        return self._control

    def encode(self, text: str) -> list[int]:
        """The ids of `text` as plain text, as the tokenizer itself encodes it where it holds no control token."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        text: str = self._whole.decode(list(ids), skip_special_tokens=False)
        return text


class HFTemplate:
    """The chat template of a `transformers` tokenizer. Arguments of calls go in as mappings, tools as OpenAI functions.

    `kwargs` go to every rendering (`enable_thinking`, `chat_template`, ...) and must not change within a chain.
    """

    def __init__(self, hf: FastTokenizer, **kwargs: object) -> None:
        self._hf = hf
        self._kwargs = kwargs

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The full rendering. Errors of the template come out as it raised them."""
        text: str = self._hf.apply_chat_template(
            [_message(message) for message in messages],
            tools=[_function(tool) for tool in tools] or None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
            **self._kwargs,
        )
        return text


def _forget(model: dict[str, Any], texts: set[str]) -> None:
    """Take `texts` out of the ordinary vocabulary, where some tokenizers list their control tokens too."""
    vocabulary = model["vocab"]
    listed = texts.intersection(vocabulary) - {model.get("unk_token")} if isinstance(vocabulary, dict) else set()
    for text in listed:
        del vocabulary[text]
    if listed and "merges" in model:
        model["merges"] = [
            pair
            for pair in model["merges"]
            if "".join(pair.split(" ") if isinstance(pair, str) else pair) not in listed
        ]


def _message(message: Message) -> dict[str, Any]:
    wire: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _plain(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        wire["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        wire["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        wire["name"] = message.name
    return wire


def _function(tool: ToolSpec) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": _plain(tool.parameters)}
    return {"type": "function", "function": function}


def _plain(value: Json) -> Json:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
