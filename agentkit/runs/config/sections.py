"""The sections of a configuration: which fields there are, and what is made of them.

The fields are those of `RunConfig` and `Agent` themselves, so that a field added there is one here. A file is checked
as a whole before anything that it names is imported: the form of each section, each plain value, each name.
"""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from agentkit.actors import Agent, OutcomePolicy
from agentkit.errors import AgentkitError
from agentkit.runs.config.classes import problems_of, structure_class
from agentkit.runs.config.components import Components
from agentkit.runs.config.problems import Problem, Problems, collect, nearest, shown
from agentkit.runs.config.roles import ENV, LOOP, MODEL, PARSER, RENDERER, REWARD, TOOL, Kind

COMPONENTS: Mapping[str, Kind] = {
    "renderer": RENDERER,
    "parser": PARSER,
    "env": ENV,
    "reward": REWARD,
    "loop": LOOP,
}
"""The fields of an agent that are one component each; `tools` is a list of them."""

AGENT_FIELDS = tuple(each.name for each in attrs.fields(Agent) if each.name != "model")


class Sections:
    """Checks and makes the sections that need what `components` makes."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._values = components.values
        self._values.register(OutcomePolicy, self._outcomes)
        self._values.register(Agent, self._nested_agent)
        self._fields_of_outcomes = structure_class(self._values.converter, OutcomePolicy, self._values.accepts_none)

    def check_model(self, tree: object) -> None:
        """Check the form of the model section.

        Raises:
            Problems: all there are.
        """
        self._components.named(tree, MODEL.group)

    def make_model(self, tree: object) -> Any:
        """The model.

        Raises:
            Problems: all there are.
        """
        return self._components.make(tree, MODEL)

    def check_agent(self, tree: object) -> None:
        """Check the form of an agent section and its plain values; nothing is imported.

        Raises:
            Problems: all there are.
        """
        self._each_field(tree, self._check_field)

    def make_parts(self, tree: object) -> dict[str, Any]:
        """The parts of an agent that its section gives, by name.

        Raises:
            Problems: all there are.
        """
        return self._each_field(tree, self._make_field)

    def make_agent(self, model: Any, parts: Mapping[str, Any]) -> Agent:
        """The agent of `parts`.

        Raises:
            Problems: the parts do not fit together.
        """
        try:
            return Agent(model, **parts)
        except AgentkitError as error:
            raise Problems(problems_of(error, of="agent")) from None

    def check_plain(self, tree: object, hint: Any) -> Any:
        """A section that holds no component.

        Raises:
            Problems: all there are.
        """
        return self._values.structure(tree, hint)

    def _each_field(self, tree: object, act: Callable[[str, object], object]) -> dict[str, Any]:
        if not isinstance(tree, Mapping):
            raise Problems.one(f"must be a mapping with the fields of an agent, found {shown(tree)}")

        def field(name: str) -> tuple[str, object]:
            return name, self._field(name, tree[name], act)

        return {name: made for name, made in collect(((name, name) for name in tree), field) if made is not None}

    def _field(self, name: str, value: object, act: Callable[[str, object], object]) -> object:
        if name not in AGENT_FIELDS:
            where = "; the model has a section of its own" if name == "model" else ""
            raise Problems.one(f"is unknown: {nearest(name, AGENT_FIELDS, kind='fields')}{where}")
        return None if value is None else act(name, value)

    def _check_field(self, name: str, value: object) -> object:
        if name in COMPONENTS:
            return self._components.named(value, COMPONENTS[name].group)
        if name == "tools":
            return _each_tool(value, lambda tool: self._components.named(tool, TOOL.group))
        return self._values.structure(value, _plain_hint(name))

    def _make_field(self, name: str, value: object) -> object:
        if name in COMPONENTS:
            return self._components.make(value, COMPONENTS[name])
        if name == "tools":
            return _each_tool(value, lambda tool: self._components.make(tool, TOOL))
        return self._values.structure(value, _plain_hint(name))

    def _nested_agent(self, value: object) -> Agent:
        """An agent as an argument, of a sub-agent say: an agent section with its model inside."""
        if not isinstance(value, Mapping) or value.get("model") is None:
            raise Problems.one(f"must be an agent section with a model in it, found {shown(value)}")
        problems: list[Problem] = []
        model, parts = None, dict[str, Any]()
        try:
            model = self.make_model(value["model"])
        except Problems as error:
            problems += error.under("model").problems
        try:
            parts = self.make_parts({key: item for key, item in value.items() if key != "model"})
        except Problems as error:
            problems += error.problems
        if problems:
            raise Problems(problems)
        return self.make_agent(model, parts)

    def _outcomes(self, value: object) -> object:
        """`mask_abnormal`, or fields of an `OutcomePolicy`; its `exits` are laid over the default ones."""
        if isinstance(value, str):
            if value != "mask_abnormal":
                raise Problems.one(f"must be 'mask_abnormal' or the fields of an OutcomePolicy, found {shown(value)}")
            return OutcomePolicy.mask_abnormal()
        if isinstance(value, Mapping) and isinstance(value.get("exits"), Mapping):
            defaults = {reason.value: outcome.value for reason, outcome in OutcomePolicy().exits.items()}
            value = {**value, "exits": {**defaults, **value["exits"]}}
        return self._fields_of_outcomes(value)


def _plain_hint(name: str) -> Any:
    return attrs.fields_dict(Agent)[name].type


def _each_tool(value: object, act: Callable[[object], object]) -> list[object]:
    if not isinstance(value, list):
        raise Problems.one(f"must be a list, found {shown(value)}")
    return collect(enumerate(value), act)
