"""Pytest tests of a tokenizer and its chat template, in a line of a test file."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols import Renderer, ToolSpec
from agentkit.testing.alignment.oracles import Oracle
from agentkit.testing.alignment.properties import PROPERTIES, REWRITES, Property
from agentkit.testing.alignment.report import AlignmentFailed, TemplateRewrites
from agentkit.testing.alignment.search import search
from agentkit.testing.alignment.subject import Subject, subject_of

EXAMPLES = 30
"""Conversations tried for each property."""


def alignment_suite(
    tokenizer: Any = None,
    *,
    renderer: Renderer | None = None,
    oracle: Oracle | None = None,
    tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
    reasoning: bool = True,
    allow_rewrites: bool = False,
    examples: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> type:
    """A class of pytest tests, one for each property: bind it to a name that begins with `Test`.

    `tokenizer` is a loaded fast one, a folder, a GGUF file, a name on the hub, or a function that loads one; nothing is
    loaded before the first test runs. Renderer and oracle are made from it, `options` being what `hf_renderer` takes
    (`chat_template`, `family`, `keep_history`, `enable_thinking`, ...); either may be given instead. A template that
    rewrites what is in a chain fails a test unless `allow_rewrites`. `examples` are the conversations tried for each
    property, 30 by default or what `pytest --alignment-examples` says; `seed` chooses them, 0 or `--alignment-seed`.

        TestQwen = alignment_suite("models/qwen3", reasoning=False, enable_thinking=False)
    """
    if tokenizer is None and (renderer is None or oracle is None):
        raise ConfigError("an alignment suite needs a tokenizer, or both renderer=... and oracle=...")

    def make() -> Subject:
        loaded = tokenizer() if inspect.isroutine(tokenizer) else tokenizer
        return subject_of(loaded, renderer=renderer, oracle=oracle, tools=tools, reasoning=reasoning, **options)

    lazy = _Lazy(make)
    methods: dict[str, Any] = {"test_the_template_keeps_what_it_wrote": _certified(lazy, allow_rewrites)}
    for prop in PROPERTIES:
        methods[f"test_{prop.name}"] = _test(lazy, prop, examples, seed)
    return type("TestAlignment", (), {"__doc__": "A renderer and its template's own renders agree.", **methods})


class _Lazy:
    """A subject that is made when the first test asks for it."""

    def __init__(self, make: Callable[[], Subject]) -> None:
        self._make = make
        self._made: Subject | None = None

    def __call__(self) -> Subject:
        if self._made is None:
            self._made = self._make()
        return self._made


def _certified(lazy: _Lazy, allow_rewrites: bool) -> Callable[[object], None]:
    def test(self: object) -> None:
        """The template never changes text that is in a chain already."""
        del self
        __tracebackhide__ = True
        rewrites = getattr(lazy().renderer, "rewrites", ())
        if rewrites and not allow_rewrites and not lazy().keeps_history:
            said = "\n".join(f"  {each}" for each in rewrites)
            raise TemplateRewrites(f"the template rewrites what is in a chain\n{said}\n  What to do: {REWRITES}")

    return test


def _test(lazy: _Lazy, prop: Property, examples: int | None, seed: int | None) -> Callable[[object, Any], None]:
    def test(self: object, request: Any) -> None:
        del self
        __tracebackhide__ = True
        finding = search(
            lazy(),
            prop,
            examples=_chosen(examples, request.config, "alignment_examples", EXAMPLES),
            seed=_chosen(seed, request.config, "alignment_seed", 0),
        )
        if finding.counterexample is not None:
            raise AlignmentFailed(finding.counterexample) from None
        if not finding.reached:
            pytest = require("pytest", extra="testing", purpose="an alignment suite")
            pytest.skip(f"none of {finding.tried} conversations gets there: the template refuses or rewrites them")

    test.__doc__ = prop.says
    return test


def _chosen(given: int | None, config: Any, option: str, default: int) -> int:
    """What the suite says, else what the command line says."""
    if given is not None:
        return given
    told: int | None = config.getoption(option, default=None)
    return default if told is None else told
