"""Chat templates of `transformers` without the copies that `apply_chat_template` makes of all it is given.

It rebuilds messages and tools value by value on each call, so that a template from the hub never gets hold of an object
with methods. What is handed over here is plain JSON already, so the copies are left out, and nothing else: the template
is found, compiled and sandboxed by `transformers`, and what comes out is compared with its own rendering first.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.errors import MissingExtraError
from agentkit.extras import require

_REMEMBERED = 64
_SCALARS = (str, int, float, bool, type(None))


class PlainRendering:
    """Renders plain messages and tools with one tokenizer's chat template, the short way where that is the same."""

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self._official: Callable[..., Any] = hf.apply_chat_template
        self._compile = _compiler(hf)
        self._is_same: dict[tuple[str, bool], bool] = {}

    def __call__(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        kwargs: Mapping[str, object],
        *,
        generation_prompt: bool,
    ) -> str:
        """The rendering. Errors of the template come out as it raised them."""
        text, key = None, ("", False)
        # Reasoning goes by several names, which `apply_chat_template` fills in; other kwargs it may read itself.
        if self._compile and messages and _is_plain(kwargs) and not any("thinking" in each for each in messages):
            source = self._hf.get_chat_template(kwargs.get("chat_template"), tools)
            key = (source, tools is not None)
            if self._is_same.get(key, True):
                text = self._short(self._compile(source), messages, tools, kwargs, generation_prompt)
        if text is not None and key in self._is_same:
            return text
        official: str = self._official(
            messages, tools=tools, add_generation_prompt=generation_prompt, tokenize=False, **kwargs
        )
        if text is not None:
            if len(self._is_same) >= _REMEMBERED:  # a template that holds a date is another one every day
                self._is_same.clear()
            self._is_same[key] = text == official
        return official

    def _short(
        self, compiled: Any, messages: Any, tools: Any, kwargs: Mapping[str, object], prompt: bool
    ) -> str | None:
        """The rendering without copies; None where the template raises something, which is for the official one."""
        shown = {**self._hf.special_tokens_map, **kwargs}
        shown.pop("chat_template", None)
        try:
            text: str = compiled.render(
                messages=messages, tools=tools, documents=None, add_generation_prompt=prompt, **shown
            )
        except Exception:  # the template is the user's code
            return None
        return text


def _is_plain(kwargs: Mapping[str, object]) -> bool:
    return all(type(value) in _SCALARS for value in kwargs.values())


def _compiler(hf: Any) -> Callable[[str], Any] | None:
    """What compiles templates for `apply_chat_template`; None where that is not the one of `transformers`, or moved."""
    try:
        base = require("transformers", extra="hf", purpose="chat templates").PreTrainedTokenizerBase
        module = require("transformers.utils.chat_template_utils", extra="hf", purpose="chat templates")
    except (MissingExtraError, ImportError, AttributeError):
        return None
    if getattr(hf.apply_chat_template, "__func__", None) is not base.apply_chat_template:
        return None
    compiler = getattr(module, "_compile_jinja_template", None)
    return compiler if callable(compiler) and "chat_template" in inspect.signature(compiler).parameters else None
