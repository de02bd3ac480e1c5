"""A parameter's annotation as a JSON schema, and the way back from a JSON value to what the function expects."""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import attrs
from attrs import frozen

from agentkit.protocols.messages import Json
from agentkit.tools.schema import fault_of

Build: TypeAlias = Callable[[Json], object]


@frozen
class Shape:
    """An annotation in JSON: `schema` says which values fit, `build` makes the Python value of one that fits."""

    schema: Mapping[str, Json]
    build: Build


class UnsupportedAnnotation(TypeError):
    """An annotation that has no JSON schema here; the message says which part of it."""


def shape_of(annotation: object) -> Shape:
    """The shape of `annotation`.

    Understood: str, int, float, bool, None, Any, list, Sequence, tuple[T, ...], dict and Mapping with str keys,
    Literal, Enum, unions, Annotated (a string in it is the description), attrs classes and dataclasses.

    Raises:
        UnsupportedAnnotation: anything else.
    """
    return _shape(annotation, ())


def _shape(annotation: object, within: tuple[object, ...]) -> Shape:
    scalar = _SCALARS.get(annotation) if isinstance(annotation, type) else None
    if scalar is not None:
        return scalar
    if annotation is None:
        return _SCALARS[type(None)]
    if annotation is Any or annotation is object:
        return Shape({}, _as_it_is)
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin is Annotated:
        inner = _shape(arguments[0], within)
        described = [text for text in arguments[1:] if isinstance(text, str)]
        return Shape({**inner.schema, "description": described[0]}, inner.build) if described else inner
    if origin is Literal:
        return Shape(_enum_schema(arguments), _as_it_is)
    if origin is Union or origin is types.UnionType:
        return _union([_shape(each, within) for each in arguments])
    if origin in (list, Sequence, tuple):
        return _array(origin, arguments, within)
    if origin in (dict, Mapping):
        return _mapping(arguments, within)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return Shape(_enum_schema([member.value for member in annotation]), cast("Build", annotation))
    if isinstance(annotation, type) and (attrs.has(annotation) or dataclasses.is_dataclass(annotation)):
        return _record(annotation, within)
    raise UnsupportedAnnotation(f"{annotation!r} has no JSON schema")


def _as_it_is(value: Json) -> object:
    return value


_SCALARS: Mapping[type, Shape] = {
    str: Shape({"type": "string"}, _as_it_is),
    bool: Shape({"type": "boolean"}, _as_it_is),
    int: Shape({"type": "integer"}, _as_it_is),
    float: Shape({"type": "number"}, lambda value: float(cast("float", value))),
    type(None): Shape({"type": "null"}, _as_it_is),
}


def _enum_schema(values: Sequence[object]) -> Mapping[str, Json]:
    for value in values:
        if type(value) not in (str, int, bool, type(None)):
            raise UnsupportedAnnotation(f"the choice {value!r} is no string, integer, bool or None")
    kinds = {type(value) for value in values}
    choices = {"enum": cast("list[Json]", list(values))}
    return {**_SCALARS[kinds.pop()].schema, **choices} if len(kinds) == 1 else choices


def _union(shapes: Sequence[Shape]) -> Shape:
    def build(value: Json) -> object:
        return next(shape.build(value) for shape in shapes if fault_of(shape.schema, value) is None)

    return Shape({"anyOf": [shape.schema for shape in shapes]}, build)


def _array(origin: object, arguments: tuple[object, ...], within: tuple[object, ...]) -> Shape:
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not Ellipsis):
        raise UnsupportedAnnotation("only tuple[T, ...] has a JSON schema among tuples")
    item = _shape(arguments[0], within) if arguments else Shape({}, _as_it_is)

    def build(value: Json) -> object:
        items = [item.build(each) for each in cast("Sequence[Json]", value)]
        return tuple(items) if origin is tuple else items

    return Shape({"type": "array", **({"items": item.schema} if item.schema else {})}, build)


def _mapping(arguments: tuple[object, ...], within: tuple[object, ...]) -> Shape:
    if arguments and arguments[0] is not str:
        raise UnsupportedAnnotation(f"keys of a JSON object are str, found {arguments[0]!r}")
    item = _shape(arguments[1], within) if arguments else Shape({}, _as_it_is)

    def build(value: Json) -> object:
        return {key: item.build(each) for key, each in cast("Mapping[str, Json]", value).items()}

    return Shape({"type": "object", **({"additionalProperties": item.schema} if item.schema else {})}, build)


def _record(record: type, within: tuple[object, ...]) -> Shape:
    if record in within:
        raise UnsupportedAnnotation(f"{record.__name__} contains itself")
    hints = get_type_hints(record, include_extras=True)
    names: dict[str, str] = {}  # the parameter of __init__ by the name of the field
    required: list[str] = []
    if attrs.has(record):
        for attribute in attrs.fields(record):
            if attribute.init:
                names[attribute.name] = attribute.alias or attribute.name
                required += [attribute.name] if attribute.default is attrs.NOTHING else []
    else:
        for each in dataclasses.fields(cast("Any", record)):
            if each.init:
                names[each.name] = each.name
                missing = each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
                required += [each.name] if missing else []
    shapes = {name: _shape(hints[name], (*within, record)) for name in names}

    def build(value: Json) -> object:
        given = cast("Mapping[str, Json]", value)
        return record(**{names[key]: shapes[key].build(each) for key, each in given.items()})

    properties: dict[str, Json] = {name: shape.schema for name, shape in shapes.items()}
    return Shape({"type": "object", "properties": properties, "required": list[Json](required)}, build)
