"""What is under test: a renderer, the template's own full renders, and the tools that the policy is shown."""

import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from attrs import evolve, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import Dated, Json, Message, Renderer, Tokenizer, ToolSpec, user
from agentkit.testing.alignment.oracles import HFOracle, Oracle
from agentkit.tokens import Mode

_CLOCK = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")

PROBE = ToolSpec(
    "look_up",
    "Looks something up.",
    {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
)

_INTEGRATION = "agentkit_hf"  # by name: it stands above this package, and what it makes is what users train with


@frozen(kw_only=True)
class Subject:
    """A renderer and its oracle.

    `tools` are called, and shown in half of the conversations if the template `shows_tools`. `reasons` says whether the
    policy writes reasoning, `always_reasons` whether every turn does; with `keeps_history` the renderer goes on where
    the template would change what was said, and only what is new has to be the template's.
    """

    renderer: Renderer
    oracle: Oracle
    tokenizer: Tokenizer
    tools: tuple[ToolSpec, ...] = (PROBE,)
    reasons: bool = True
    always_reasons: bool = False
    keeps_history: bool = False
    opens_with_system: bool = True
    shows_tools: bool = True
    keeps_text: bool = True
    """Whether decoding gives the encoded text back, character by character."""

    @property
    def is_certified(self) -> bool:
        """Whether the renderer says that its template takes every append and never changes what it has written."""
        certificate = getattr(self.renderer, "certificate", None)
        return not getattr(self.renderer, "rewrites", ()) and not getattr(certificate, "refusals", ())


def subject_of(
    tokenizer: Any = None,
    *,
    renderer: Renderer | None = None,
    oracle: Oracle | None = None,
    tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
    reasoning: bool = True,
    **options: Any,
) -> Subject:
    """A subject over a loaded fast tokenizer, or a folder, a GGUF file or a name on the hub.

    Renderer and oracle are made from it as `agentkit_hf.hf_renderer(tokenizer, reasoning=..., **options)` would be;
    either may be given instead, and with both there need be no tokenizer. `tools` are specs or functions in OpenAI
    form, by default one that looks something up.

    Raises:
        ConfigError: something is missing, or the parts do not fit.
        MissingExtraError: `transformers` is not installed.
    """
    if tokenizer is None and (renderer is None or oracle is None):
        raise ConfigError("an alignment test needs a tokenizer, or both renderer=... and oracle=...")
    if isinstance(tokenizer, str):
        tokenizer = import_module(f"{_INTEGRATION}.loading").load_tokenizer(tokenizer)
    if renderer is None:
        # whether something is rewritten is a result of the test, no reason not to make it
        made = {**options, "allow_rewrites": True}
        renderer = import_module(_INTEGRATION).hf_renderer(tokenizer, reasoning=reasoning, **made)
    now = datetime.now()
    if (today := options.get("today")) is not None:
        now = datetime.combine(date.fromisoformat(today) if isinstance(today, str) else today, time())
    if oracle is None:
        oracle = HFOracle(tokenizer, **_template_options(tokenizer, options, now))
        if isinstance(renderer, Dated):  # both write of the same moment, however long the test takes
            renderer = renderer.dated(now)
    text = cast("Any", renderer)
    if not isinstance(getattr(text, "tokenizer", None), Tokenizer):
        raise ConfigError(f"an alignment test needs a renderer with a tokenizer, {type(renderer).__name__} has none")
    family = getattr(text, "family", None)
    mode: object = getattr(getattr(text, "certificate", None), "mode", Mode.FREE)
    subject = Subject(
        renderer=cast("Renderer", renderer),
        oracle=oracle,
        tokenizer=text.tokenizer,
        tools=tuple(map(_spec, tools)) or (PROBE,),
        reasons=mode is not Mode.CLOSED and reasoning and getattr(family, "reasons", True),
        always_reasons=mode is Mode.OPEN,
        keeps_history=bool(getattr(text, "keeps_history", options.get("keep_history", False))),
    )
    return evolve(
        subject,
        opens_with_system=bool(options.get("with_system", True)) and _takes_system(subject),
        shows_tools=bool(tools) or _shows_tools(subject),
        keeps_text=_keeps_text(subject),
    )


def _template_options(hf: Any, options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    """What `transformers` is told: not what is for the renderer alone, and the template as text that reads no clock."""
    ours = ("family", "allow_rewrites", "keep_history", "with_system", "today")
    passed = {name: value for name, value in options.items() if name not in ours}
    given = passed.pop("chat_template", None)
    own = getattr(hf, "chat_template", None)
    if isinstance(given, str) and "{%" not in given and "{{" not in given:
        named = own.get(given) if isinstance(own, dict) else None
        given = Path(given).expanduser().read_text(encoding="utf-8") if named is None else named
    source = own if given is None else given
    if isinstance(source, str) and _CLOCK.search(source):
        given = _CLOCK.sub(lambda found: repr(now.strftime(found[2])), source)
    if given is not None:
        passed["chat_template"] = given
    return passed


def _spec(tool: ToolSpec | Mapping[str, Any]) -> ToolSpec:
    if isinstance(tool, ToolSpec):
        return tool
    function: Any = tool.get("function", tool)
    name: object = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not name:
        raise ConfigError(f"a tool is a ToolSpec or a function in OpenAI form with a name, found {tool!r:.200}")
    parameters: Mapping[str, Json] = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(name, str(function.get("description", "")), parameters)


def _takes_system(subject: Subject) -> bool:
    try:
        subject.oracle.render([Message("system", "."), user(".")], (), generation_prompt=True)
    except Exception:  # the template is the user's code: some refuse a system message, each in its own words
        return False
    return True


def _shows_tools(subject: Subject) -> bool:
    try:
        text = subject.oracle.render([user(".")], subject.tools, generation_prompt=True)
    except Exception:  # some refuse tools
        return False
    return subject.tools[0].name in text


def _keeps_text(subject: Subject) -> bool:
    said = [user(" a  b\n\n<\t1 + 1 \u00e9"), Message("assistant", "\n.")]
    try:
        text = subject.oracle.render(said, (), generation_prompt=True)
        ids = subject.oracle.encode(said, (), generation_prompt=True)
    except Exception:  # it takes no conversation that ends so
        return False
    return subject.tokenizer.decode(list(ids)) == text
