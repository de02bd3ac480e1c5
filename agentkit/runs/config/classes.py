"""Classes of attrs and dataclasses from mappings: by cattrs, with every fault told by its path."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from cattrs import ClassValidationError, Converter, ForbiddenExtraKeysError
from cattrs.gen import make_dict_structure_fn, override

from agentkit.errors import ConfigError
from agentkit.runs.config.problems import Problem, Problems, nearest, shown
from agentkit.runs.config.variables import plain

_OWN_FIELD = re.compile(r"(\w+)\.(\w+) ((?:must|cannot|has|is) .*)", re.DOTALL)


class _Missing(KeyError):
    """A field that is needed and not there."""


class _Fields(dict[str, object]):
    """The mapping that cattrs reads: it tells a field that is not there from a KeyError of somebody's code."""

    def __missing__(self, key: str) -> object:
        raise _Missing(key)


def is_class_of_fields(hint: object) -> bool:
    """Whether `hint` is a class that is made from its fields."""
    return isinstance(hint, type) and (attrs.has(hint) or dataclasses.is_dataclass(hint))


def field_names(cls: type) -> tuple[str, ...]:
    """The names by which the fields of `cls` are given."""
    if attrs.has(cls):
        return tuple(each.alias or each.name for each in attrs.fields(cls) if each.init)
    return tuple(each.name for each in dataclasses.fields(cls) if each.init)


def structure_class(converter: Converter, cls: type, accepts_none: Callable[[Any], bool]) -> Callable[[object], object]:
    """A function that makes a `cls` of a mapping; it raises `Problems`, all there are."""
    hints = _field_hints(cls)
    untyped = override(struct_hook=lambda value, _: plain(value))
    overrides: dict[str, Any] = {name: untyped for name, hint in hints.items() if hint is None}
    make: Any = make_dict_structure_fn(
        cls,
        converter,
        _cattrs_forbid_extra_keys=True,
        _cattrs_detailed_validation=True,
        _cattrs_use_alias=True,
        _cattrs_use_linecache=False,
        **overrides,
    )
    keeps_none = {_alias(cls, name) for name, hint in hints.items() if accepts_none(hint)}

    def structure(value: object) -> object:
        if not isinstance(value, Mapping):
            raise Problems.one(f"must be a mapping with the fields of {cls.__name__}, found {shown(value)}")
        known = field_names(cls)
        given = {k: v for k, v in value.items() if v is not None or k in keeps_none or k not in known}
        try:
            return make(_Fields(given), cls)
        except ClassValidationError as error:
            raise Problems(_problems(error, cls)) from None

    return structure


def problems_of(error: Exception, *, of: str) -> Iterator[Problem]:
    """What the checks of a class or function said, about the field they name where they name one."""
    if isinstance(error, Problems):
        yield from error.problems
        return
    text = str(error)
    if isinstance(error, ConfigError):
        own = _OWN_FIELD.fullmatch(text)
        yield Problem((own[2],), own[3]) if own and own[1] == of else Problem((), f"is not accepted: {text}")
    elif len(error.args) > 1 and isinstance(error.args[1], attrs.Attribute):  # a validator of attrs
        name = error.args[1].alias or error.args[1].name
        yield Problem((name,), f"is not accepted: {error.args[0]}")
    else:
        yield Problem((), f"is not accepted: {type(error).__name__}: {text}")


def _problems(error: ClassValidationError, cls: type) -> Iterator[Problem]:
    with_field, others = error.group_exceptions()
    for inner, note in with_field:
        name = _alias(cls, note.name)
        if isinstance(inner, _Missing):
            yield Problem((name,), f"is missing: {cls.__name__} needs it")
        else:
            for problem in problems_of(inner, of=name):
                yield attrs.evolve(problem, path=(name, *problem.path))
    for inner in others:
        if isinstance(inner, ForbiddenExtraKeysError):
            names = field_names(cls)
            for key in sorted(inner.extra_fields):
                yield Problem((key,), f"is unknown: {nearest(key, names, kind='fields')}")
        else:
            yield from problems_of(inner, of=_section_of(cls))


def _section_of(cls: type) -> str:
    """How messages of our own classes call them: `budget.max_turns must be ...`."""
    return {"PoolLimits": "pool", "OutcomePolicy": "outcomes"}.get(cls.__name__, cls.__name__.lower())


def _field_hints(cls: type) -> Mapping[str, object]:
    if attrs.has(cls):
        return {each.name: each.type for each in attrs.fields(cls)}
    return {each.name: each.type for each in dataclasses.fields(cls)}


def _alias(cls: type, name: str) -> str:
    return (
        next((each.alias or name for each in attrs.fields(cls) if each.name == name), name) if attrs.has(cls) else name
    )
