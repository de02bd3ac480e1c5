"""A configuration as YAML for people: no secret in it, and defaults where they are asked for."""

import functools
import inspect
from collections.abc import Mapping
from enum import Enum
from os import PathLike, fspath
from typing import Any

import attrs

from agentkit.actors import Agent, react
from agentkit.runs.config.document import write_document
from agentkit.runs.config.source import Source
from agentkit.runs.config.variables import mask_written_secrets


def tree_of_source(
    source: Source, sections: Mapping[str, object], agent: Agent, *, defaults: bool
) -> dict[str, object]:
    """What the file says; with `defaults` the plain values of all `sections`, and of the agent, are complete."""
    tree: dict[str, object] = dict(source.tree)
    if not defaults:
        return tree
    given = tree.get("agent")
    written: Mapping[str, object] = given if isinstance(given, Mapping) else {}
    plain = {name: _filled(written.get(name), value) for name, value in _plain_fields(agent).items()}
    tree["agent"] = {**written, **plain}
    if isinstance(tree.get("dataset"), str):
        tree["dataset"] = {"path": tree["dataset"]}
    for name, value in sections.items():
        tree[name] = _filled(tree.get(name), plain_tree(value))
    return tree


def tree_of_agent(agent: Agent, *, defaults: bool) -> dict[str, object]:
    """An agent that was composed in Python: its components are named, what they were made of is not known."""
    tree: dict[str, object] = {}
    for name in ("renderer", "parser", "env", "reward", "loop"):
        part = getattr(agent, name)
        if part is not None and (defaults or part is not react):
            tree[name] = _reference(part)
    if agent.tools:
        tree["tools"] = [_reference(tool) for tool in agent.tools]
    fields = attrs.fields_dict(Agent)
    for name, value in _plain_fields(agent).items():
        default: Any = fields[name].default
        made = default.factory() if isinstance(default, attrs.Factory) else default  # type: ignore[arg-type]  # a class
        if defaults or getattr(agent, name) != made:
            tree[name] = value
    return tree


def as_yaml(tree: Mapping[str, object]) -> str:
    """`tree` as YAML, secrets written in it masked."""
    return write_document(mask_written_secrets(tree))


def plain_tree(value: object) -> Any:
    """A value of the plain sections as what YAML knows."""
    if attrs.has(type(value)):
        fields = attrs.fields(type(value))  # type: ignore[arg-type]  # has() has seen to it
        return {each.name: plain_tree(getattr(value, each.name)) for each in fields if each.init}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PathLike):
        return fspath(value)
    if isinstance(value, Mapping):
        return {plain_tree(key): plain_tree(item) for key, item in value.items()}
    return [plain_tree(item) for item in value] if isinstance(value, list | tuple) else value


def reference_to(part: object) -> str:
    """Where in Python something is, as nearly as it can be told."""
    named = part if inspect.isclass(part) or inspect.isroutine(part) or hasattr(part, "__qualname__") else type(part)
    return f"{getattr(named, '__module__', '?')}:{getattr(named, '__qualname__', '?')}"


def _reference(part: object) -> object:
    if isinstance(part, functools.partial):
        return {"use": reference_to(part.func), **{name: _argument(value) for name, value in part.keywords.items()}}
    return reference_to(part)


def _argument(value: object) -> object:
    plain = plain_tree(value)
    return plain if isinstance(plain, bool | int | float | str | list | dict | None) else _reference(value)


def _plain_fields(agent: Agent) -> dict[str, object]:
    names = ("budget", "params", "outcomes", "on_rewrite", "model_retries", "name")
    return {name: plain_tree(getattr(agent, name)) for name in names}


def _filled(written: object, complete: object) -> object:
    """What is written, variables and all; only what is not written comes from the complete values."""
    if isinstance(complete, Mapping):
        given = written if isinstance(written, Mapping) else {}
        return {name: _filled(given.get(name), value) for name, value in complete.items()}
    return complete if written is None else written
