"""What differs for one task: the `overrides` of its row, laid over the agent section.

Mappings are merged, key by key; lists and all else replace what is there; null takes a key back to its default. A
component that is given another `use` replaces the old one with its arguments; without a `use` its arguments are merged.
Variables are not replaced: a row never sees the environment. Of code it may name what has a short name, and what is in
a module that the configuration names itself.
"""

import functools
import inspect
import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import Enum
from hashlib import sha256
from typing import Any

import attrs

from agentkit.actors import Agent
from agentkit.runs.config.components import Components
from agentkit.runs.config.problems import Problem, Problems, nearest, shown
from agentkit.runs.config.references import Importer
from agentkit.runs.config.sections import AGENT_FIELDS, COMPONENTS, Sections
from agentkit.runs.config.source import Source

KEPT_AGENTS = 256
"""How many agents with overrides are kept; beyond that, the one that was not used for longest is made again."""

OVERRIDABLE = ("env", "tools", "reward", "loop", "budget", "params", "outcomes")
"""What a row may differ in. The policy and how its tokens are made are those of the run."""


def merge(under: object, over: object) -> object:
    """`over` laid over `under`; neither is changed."""
    if not isinstance(over, Mapping):
        return over
    if not isinstance(under, Mapping) or ("use" in over and over["use"] != under.get("use")):
        under = {}
    merged = dict(under)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def digest_of(overrides: object) -> str:
    """The same text for equal overrides.

    Raises:
        Problems: they hold what JSON does not.
    """
    try:
        return sha256(json.dumps(overrides, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError) as error:
        raise Problems.one(f"must be made of plain values: {error}") from None


class OverriddenAgents:
    """Makes the agent of each distinct override, once."""

    def __init__(self, base: Agent, overridable: tuple[str, ...], source: Source | None) -> None:
        self._base = base
        self._overridable = overridable
        self._tree = source.agent if source is not None else _tree_of(base)
        self._folder = source.folder if source is not None else None
        self._modules = source.modules if source is not None else frozenset(_modules_of(base))
        self._made: OrderedDict[str, Agent] = OrderedDict()

    @functools.cached_property
    def _sections(self) -> Sections:
        return Sections(Components(Importer(self._folder, self._modules)))  # most runs have no overrides

    def check(self, overrides: object) -> None:
        """Check the form of `overrides` and their plain values; nothing is imported.

        Raises:
            Problems: all there are.
        """
        self._merged(overrides)

    def make(self, overrides: object) -> Agent:
        """The agent with `overrides`, the same one for equal overrides.

        Raises:
            Problems: all there are.
        """
        digest = digest_of(overrides)
        agent = self._made.get(digest)
        if agent is None:
            agent = self._made[digest] = self._build(overrides)
            if len(self._made) > KEPT_AGENTS:
                self._made.popitem(last=False)
        self._made.move_to_end(digest)
        return agent

    def _build(self, overrides: object) -> Agent:
        merged = self._merged(overrides)
        parts = self._sections.make_parts(merged)
        parts |= {name: _default(name) for name in set(_names(overrides)) - set(parts)}
        model_parts = {each.name: getattr(self._base, each.name) for each in attrs.fields(Agent)}
        return self._sections.make_agent(model_parts.pop("model"), {**model_parts, **parts})

    def _merged(self, overrides: object) -> dict[str, object]:
        """What the overridden fields of the agent section say together with the overrides; the others are left out.

        Raises:
            Problems: all there are with it, but for those that only making it would show.
        """
        if not isinstance(overrides, Mapping):
            raise Problems.one(f"must be a mapping with fields of the agent, found {shown(overrides)}")
        refused = {name: text for name in overrides if (text := self._refusal(name))}
        problems = [Problem((str(name),), text) for name, text in refused.items()]
        merged: dict[str, object] = {}
        for name, over in overrides.items():
            if name in refused:
                continue
            under = self._tree.get(name)
            if name in COMPONENTS and isinstance(under, str) and isinstance(over, Mapping) and "use" not in over:
                under = {"use": under}
            value = merge({name: under}, {name: over})
            merged |= value if isinstance(value, dict) else {}
        try:
            self._sections.check_agent(merged)
        except Problems as error:
            problems += error.problems
        if problems:
            raise Problems(problems)
        return merged

    def _refusal(self, name: object) -> str | None:
        if name in self._overridable:
            return None
        if name in AGENT_FIELDS or name == "model":
            return f"cannot differ from task to task: only {', '.join(self._overridable) or 'nothing'} may"
        return f"is unknown: {nearest(str(name), self._overridable, kind='fields')}"


def _names(overrides: object) -> Iterator[str]:
    yield from overrides if isinstance(overrides, Mapping) else ()


def _default(name: str) -> object:
    default: Any = attrs.fields_dict(Agent)[name].default
    return default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]  # a class


def _tree_of(agent: Agent) -> Mapping[str, object]:
    """The plain parts of an agent that was composed in Python; its components are replaced as a whole."""
    return {
        "budget": attrs.asdict(agent.budget),
        "params": dict(agent.params),
        "outcomes": _values_of(attrs.asdict(agent.outcomes)),
    }


def _values_of(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_values_of(key): _values_of(item) for key, item in value.items()}
    return value


def _modules_of(agent: Agent) -> Iterator[str]:
    for part in (agent.model, agent.env, agent.reward, agent.loop, *agent.tools):
        target: Any = part
        while isinstance(target, functools.partial):
            target = target.func
        is_named = inspect.isclass(target) or inspect.isroutine(target)
        yield str(getattr(target if is_named else type(target), "__module__", ""))
