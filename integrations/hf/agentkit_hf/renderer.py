"""A renderer for a tokenizer by name: its chat template, its family, and what the template allows, found at once."""

import re
from collections.abc import Sequence
from copy import copy
from datetime import date, datetime
from pathlib import Path
from typing import Any

from attrs import evolve

from agentkit.errors import ConfigError
from agentkit.protocols import Message, ToolSpec, user
from agentkit.tokens import Certificate, Family, HFTemplate, HFTokenizer, TemplateRenderer, family_named, find_family
from agentkit_hf.loading import load_tokenizer

_OURS = ("add_generation_prompt", "conversation", "documents", "messages", "tokenize", "tools")
_SHOWN = 6
_PROBE = ToolSpec("probe_shown", "A probe.", {"type": "object", "properties": {}})


def hf_renderer(
    tokenizer: Any,
    *,
    family: str | Family = "auto",
    chat_template: str | None = None,
    reasoning: bool = True,
    allow_rewrites: bool = False,
    keep_history: bool = False,
    with_system: bool = True,
    today: str | date | None = None,
    **template_kwargs: Any,
) -> TemplateRenderer:
    """A renderer over a `transformers` tokenizer: a loaded fast one, or a folder, a GGUF file or a name on the hub.

    The template is the tokenizer's own, or `chat_template`: a template's text, a file, or the name of one of several
    that the tokenizer has. `template_kwargs` go to every rendering (`enable_thinking=False`, say). `reasoning=False`
    says that the policy writes none, which allows templates that drop earlier reasoning. The template is asked how it
    ends a turn (`family="auto"`), and whether chains can grow under it. Where it would rewrite what is in a chain, this
    fails and says why, unless `keep_history` reads it as a template that keeps what it rendered and what was sampled
    (what training on long chains wants), or `allow_rewrites`: then `Agent(on_rewrite=...)` decides when a conversation
    gets there. `with_system=False` says that no conversation has a system message. A template that writes the date
    writes that of the rollout's start, the same for a whole trajectory, or `today` (2026-11-30) for all of them. A
    tokenizer given as an object must not change afterwards.

    Raises:
        MissingExtraError: `transformers` or what it needs is not installed.
        ConfigError: there is no such tokenizer, the parts do not fit, or the template rewrites what it rendered.
    """
    hf = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
    name = tokenizer if isinstance(tokenizer, str) else getattr(hf, "name_or_path", "") or type(hf).__name__
    plain = HFTokenizer(hf)
    source = _template_text(hf, chat_template, name)
    _check_names(template_kwargs, source)
    if chat_template is not None:
        template_kwargs["chat_template"] = source
    bare = HFTemplate(hf, **template_kwargs)
    template = bare if today is None else bare.dated(_midnight(today))
    kind = family if isinstance(family, Family) else None
    if kind is None:
        kind = find_family(plain, template) if family == "auto" else family_named(str(family))
    renderer = TemplateRenderer(
        plain,
        template,
        kind if reasoning else evolve(kind, reasons=False),
        keep_history=keep_history,
        with_system=with_system,
    )
    if renderer.rewrites and not (allow_rewrites or keep_history):
        raise ConfigError(_rewrites_said(name, renderer.rewrites, reasoning=reasoning))
    return renderer.over(_Shown(template, name))


def certify(
    tokenizer: Any, *, tools: Sequence[ToolSpec] = (), chat_template: str | None = None, **options: Any
) -> Certificate:
    """What a tokenizer's chat template does with every append that agents make: the report, nothing refused.

    Takes what `hf_renderer` takes, and the tools to show. Under two seconds for a template not seen before, once the
    tokenizer is loaded; the same again is looked up, but a vocabulary that lists its control tokens among its pieces
    (Gemma, tekken) is prepared anew, which takes one of the seconds.

    Raises:
        MissingExtraError: `transformers` or what it needs is not installed.
        ConfigError: there is no such tokenizer, or the parts do not fit.
    """
    options["allow_rewrites"] = True
    return hf_renderer(tokenizer, chat_template=chat_template, **options).certify(tools)


class _Shown:
    """A template that refuses tools where it would not show them: a policy that never hears of its tools calls none."""

    def __init__(self, template: HFTemplate, name: str) -> None:
        self._template = template
        self._name = name
        self._shows_tools: bool | None = None

    @property
    def is_moving(self) -> bool:
        """Whether the template reads the clock."""
        return self._template.is_moving

    def dated(self, now: datetime) -> "_Shown":
        """The same template for which it is always `now`."""
        fixed = self._template.dated(now)
        if fixed is self._template:
            return self
        twin = copy(self)
        twin._template = fixed
        return twin

    def __call__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        if tools and not self._does_show():
            raise ConfigError(
                f"the chat template of {self._name!r} does not show tools to the policy, but the agent has "
                f"{', '.join(repr(tool.name) for tool in tools)}: pass chat_template=... with a template that does"
            )
        return self._template(messages, tools, generation_prompt=generation_prompt)

    def _does_show(self) -> bool:
        if self._shows_tools is None:
            shown = self._template((user("."),), (_PROBE,), generation_prompt=True)
            self._shows_tools = _PROBE.name in shown
        return self._shows_tools


def _template_text(hf: Any, given: str | None, name: str) -> str:
    """The source of the template that will be used; that of all of them where the tokenizer has several."""
    own = getattr(hf, "chat_template", None)
    if given is None:
        if not own:
            raise ConfigError(f"tokenizer {name!r} has no chat template: pass chat_template=..., its text or a file")
        return "\n".join(own.values()) if isinstance(own, dict) else str(own)
    if "{%" in given or "{{" in given:
        return given
    if isinstance(own, dict) and given in own:
        return str(own[given])
    path = Path(given).expanduser()
    if path.is_file():
        return path.read_text(encoding="utf-8")
    named = f" or one of {sorted(own)!r}" if isinstance(own, dict) else ""
    raise ConfigError(f"chat_template must be a template's text, an existing file{named}, found {given!r:.200}")


def _check_names(kwargs: dict[str, Any], source: str) -> None:
    for name in kwargs:
        if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", source):
            raise ConfigError(
                f"hf_renderer got {name!r}, which is nothing to set in its chat template: the arguments are family, "
                "chat_template, reasoning, allow_rewrites, keep_history, with_system, today, and what the template "
                "reads, such as enable_thinking"
            )


def _rewrites_said(name: str, rewrites: Sequence[str], *, reasoning: bool) -> str:
    found = "\n".join(f"  {rewrite}" for rewrite in rewrites[:_SHOWN])
    if len(rewrites) > _SHOWN:
        found += f"\n  and {len(rewrites) - _SHOWN} more: see agentkit check-template"
    ways = [
        "keep_history=True, which keeps what the policy saw and sampled as it was",
        "chat_template=... with a template that keeps what it rendered (a training template of the family)",
        "allow_rewrites=True where conversations do not get there, or with Agent(on_rewrite='new_chain')",
    ]
    if reasoning and all(", with reasoning" in rewrite for rewrite in rewrites):
        ways.insert(0, "reasoning=False if the policy writes no reasoning")
    return (
        f"the chat template of {name!r} is not append-only, it rewrites what is already in a chain:\n{found}\n"
        f"choose one: {'; or '.join(ways)}"
    )


def _midnight(today: str | date) -> datetime:
    try:
        day = today if isinstance(today, date) else date.fromisoformat(today)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"today must be a date such as 2026-11-30, found {today!r}") from error
    return datetime(day.year, day.month, day.day)
