"""Tokenizers and chat templates of Hugging Face `transformers`, as the Protocols here want them.

Pass in a fast tokenizer that you loaded yourself; nothing here loads or downloads one.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols.messages import Json, Message, ToolCall, ToolSpec, assistant, user
from agentkit.tokens._hf_dates import at, reads_clock
from agentkit.tokens._hf_jinja import PlainRendering
from agentkit.tokens._hf_vocabulary import without_control
from agentkit.tokens._hf_wire import (
    call_as_mapping,
    call_as_text,
    content_as_list,
    content_as_text,
    wire_message,
    wire_tool,
)


class FastTokenizer(Protocol):
    """What is used of `transformers.PreTrainedTokenizerFast`."""

    backend_tokenizer: Any
    apply_chat_template: Callable[..., Any]


class HFTokenizer:
    """A `Tokenizer` over a fast tokenizer, special and other added tokens all kept apart from plain text.

    `split_special_tokens` is not enough for that: it leaves added tokens that are not marked special (`<think>`,
    `<tool_call>`) reachable from text. So text is encoded by a copy without any added token; those made of white space
    alone stay, for they structure nothing. A tenth quicker with TOKENIZERS_PARALLELISM=false in the environment.
    """

    def __init__(self, hf: FastTokenizer) -> None:
        """Builds the copy, which shares the vocabulary unless control tokens are listed there too.

        Raises:
            MissingExtraError: `tokenizers` is not installed.
            ConfigError: `hf` is no fast tokenizer, or has control tokens that only count as whole words.
        """
        backend = getattr(hf, "backend_tokenizer", None)
        if backend is None:
            raise ConfigError(f"expected a fast tokenizer (with backend_tokenizer), found {type(hf).__name__}")
        module = require("tokenizers", extra="hf", purpose="HFTokenizer")
        control = {token.content: (number, token) for number, token in backend.get_added_tokens_decoder().items()}
        blank = [text for text in control if text.isspace()]
        for text in blank:
            del control[text]
        for text, (_, token) in control.items():
            if token.single_word:
                raise ConfigError(f"control token {text!r} counts as a whole word only, which is not supported")
        self._start, self._plain = without_control(module, backend, control.keys(), keeps_others=bool(blank))
        self._is_alone = hasattr(self._plain, "encode_batch_fast") and not _starts_threads()
        self._whole = backend
        if backend.truncation is not None or backend.padding is not None:  # left by an earlier call, or saved with it
            self._whole = module.Tokenizer.from_str(backend.to_str())
            self._whole.no_truncation()
            self._whole.no_padding()
        self._control = MappingProxyType({text: int(number) for text, (number, _) in control.items()})
        self._swallows = MappingProxyType(
            {text: (token.lstrip, token.rstrip) for text, (_, token) in control.items() if token.lstrip or token.rstrip}
        )

    @property
    def control(self) -> Mapping[str, int]:
        """Every added token by its text, whether marked special or not."""
        return self._control

    @property
    def swallows(self) -> Mapping[str, tuple[bool, bool]]:
        """Control tokens that take along the white space (before them, after them)."""
        return self._swallows

    def encode(self, text: str) -> list[int]:
        """The ids of `text` as plain text, as the tokenizer itself encodes it behind a control token."""
        if self._is_alone:  # the same without the places in the text, which take a tenth of the time
            ids: list[int] = self._plain.encode_batch_fast([text], add_special_tokens=False)[0].ids
        else:
            ids = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def encode_start(self, text: str) -> list[int]:
        """The ids of `text` as plain text, as the tokenizer itself encodes it where a text starts with it."""
        ids: list[int] = self._start.encode(text, add_special_tokens=False).ids
        return ids

    def encode_whole(self, text: str) -> list[int]:
        """The ids the tokenizer itself gives for `text`, control tokens found in it: for trusted text."""
        ids: list[int] = self._whole.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, control tokens included."""
        text: str = self._whole.decode(list(ids), skip_special_tokens=False)
        return text


class HFTemplate:
    """The chat template of a `transformers` tokenizer. Tools go in as OpenAI functions, arguments of calls as mappings.

    A template that cannot write mappings (DeepSeek V3's joins strings) gets arguments as JSON text, and one that knows
    contents as lists only (Idefics3's) gets no others; it is asked which.
    `kwargs` go to every rendering (`enable_thinking`, `chat_template`, ...) and must not change within a chain.
    """

    def __init__(self, hf: FastTokenizer, **kwargs: object) -> None:
        self._hf = hf
        self._kwargs = kwargs
        given = kwargs.get("chat_template") or getattr(hf, "chat_template", None) or ""
        named = given.items() if isinstance(given, Mapping) else (("default", given),)
        self._sources = {str(name): str(source) for name, source in named}
        self._is_held = False
        self._render = PlainRendering(hf)
        self._last_shown: tuple[object, list[dict[str, Any]] | None] = (None, None)
        self._contents: Callable[[Message], Any] = content_as_text
        self._calls: Callable[[ToolCall], dict[str, Json]] = call_as_mapping
        self._contents = self._how_contents_are_written()
        self._calls = self._how_calls_are_written()

    @property
    def is_moving(self) -> bool:
        """Whether the template reads the clock: what it renders today is not what it renders tomorrow."""
        return any(map(reads_clock, self._sources.values()))

    @property
    def identity(self) -> str:
        """Tells templates apart that may render differently: their source, their arguments, the special tokens."""
        names = getattr(self._hf, "special_tokens_map", {})
        kwargs = {name: value for name, value in self._kwargs.items() if name != "chat_template"}
        return repr((sorted(self._sources.items()), sorted(kwargs.items(), key=repr), sorted(names.items(), key=repr)))

    def dated(self, now: datetime) -> "HFTemplate":
        """The same template for which it is always `now`; itself where it does not read the clock.

        Raises:
            ConfigError: it reads the clock in a way that cannot be held.
        """
        if not self.is_moving:
            return self
        held = copy(self)
        held._sources = {name: at(source, now) for name, source in self._sources.items()}
        held._is_held = True
        return held

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        """The full rendering. Errors of the template come out as it raised them."""
        kwargs = self._kwargs
        if self._is_held:  # of several templates `transformers` takes the one named for tools where there are some
            name = "tool_use" if tools and "tool_use" in self._sources else "default"
            kwargs = {**kwargs, "chat_template": self._sources[name]}
        said = [wire_message(message, self._calls, self._contents) for message in messages]
        return self._render(said, self._shown(tools), kwargs, generation_prompt=generation_prompt)

    def _shown(self, tools: Sequence[ToolSpec]) -> list[dict[str, Any]] | None:
        """The tools as templates read them; the last ones are remembered where they cannot change under us."""
        if self._last_shown[0] is not tools:
            wired = [wire_tool(tool) for tool in tools] or None
            if not isinstance(tools, tuple):
                return wired
            self._last_shown = (tools, wired)
        return self._last_shown[1]

    def _how_contents_are_written(self) -> Callable[[Message], Any]:
        if self._shows("probe text"):
            return content_as_text
        self._contents = content_as_list
        return content_as_list if self._shows("probe text") else content_as_text

    def _shows(self, text: str) -> bool:
        try:
            return text in self([user(text)], (), generation_prompt=False)
        except Exception:  # the template is the user's code, and refuses in its own words
            return False

    def _how_calls_are_written(self) -> Callable[[ToolCall], dict[str, Json]]:
        probe = assistant("", ToolCall("probe0000", "probe", {"probe_key": "probe_value"}))
        try:
            text = self([user("."), probe], (), generation_prompt=False)
            return call_as_text if "{'probe_key'" in text else call_as_mapping
        except Exception:  # the template is the user's code: it may refuse the mapping, or the conversation
            self._calls = call_as_text
        try:
            self([user("."), probe], (), generation_prompt=False)
        except Exception:
            return call_as_mapping
        return call_as_text


def _starts_threads() -> bool:
    """Whether `tokenizers` goes through lists on threads of its own, one a core, which a fork would lose."""
    off = ("", "off", "false", "f", "no", "n", "0")
    return os.environ.get("TOKENIZERS_PARALLELISM", "on").lower() not in off
