"""Arguments against schemas: what `tool` generates accepts exactly what the annotations accept."""

import dataclasses
import json
import math
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.protocols import ToolSpec
from agentkit.tools import check_arguments, tool
from agentkit.tools.annotations import shape_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@attrs.frozen
class Point:
    x: int
    _label: str | None = None


@dataclasses.dataclass(frozen=True)
class Box:
    corner: Point
    weights: list[float]


SCALARS = [str, int, float, bool, type(None), Colour, Point, Box, Literal["a", "b"], Literal[1, "1", True]]
JSON_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.just(10**400)
    | st.sampled_from([0.0, 1.0, 0.5, math.nan, math.inf])
    | st.sampled_from(["a", "b", "1", "red", "x", ""])
)
JSON_VALUES = st.recursive(
    JSON_SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "label", "_label", "corner", "weights", "k"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def annotations() -> st.SearchStrategy[Any]:
    return st.recursive(
        st.sampled_from(SCALARS),
        lambda inner: st.one_of(
            inner.map(lambda each: list[each]),
            inner.map(lambda each: tuple[each, ...]),
            inner.map(lambda each: dict[str, each]),
            st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1]),
        ),
        max_leaves=4,
    )


def accepts(annotation: Any, value: Any) -> bool:
    """The oracle: whether a JSON value is one of this annotation, read off the annotation itself."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation in (str, bool, type(None)):
        return type(value) is annotation
    if annotation is int:
        return type(value) is int
    if annotation is float:
        return type(value) in (int, float) and abs(value) <= 1.7e308
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin in (Union, types.UnionType):
        return any(accepts(each, value) for each in arguments)
    if origin in (list, tuple):
        return isinstance(value, list) and all(accepts(arguments[0], each) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(accepts(arguments[1], each) for each in value.values())
    if annotation is Colour:
        return value in ("red", "blue")
    hints = get_type_hints(annotation)
    required = {Point: {"x"}, Box: {"corner", "weights"}}[annotation]
    return (
        isinstance(value, dict)
        and required <= value.keys() <= hints.keys()
        and all(accepts(hints[key], each) for key, each in value.items())
    )


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """JSON values that the annotation accepts."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(each) for each in arguments])
    if origin in (list, tuple):
        return st.lists(values_of(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(st.text(max_size=3), values_of(arguments[1]), max_size=3)
    if annotation is Point:
        return st.fixed_dictionaries({"x": st.integers()}, optional={"_label": st.none() | st.text(max_size=3)})
    if annotation is Box:
        return st.fixed_dictionaries({"corner": values_of(Point), "weights": st.lists(values_of(float), max_size=2)})
    simple = {str: st.text(max_size=4), int: st.integers(), bool: st.booleans(), type(None): st.none()}
    simple |= {float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)}
    return simple.get(annotation, st.sampled_from(["red", "blue"]))


def plain(value: Any) -> Any:
    """A built value as JSON again: the obvious way back."""
    if isinstance(value, Colour):
        return value.value
    if isinstance(value, Point | Box):
        fields = [each.name for each in getattr(type(value), "__attrs_attrs__", None) or dataclasses.fields(value)]
        return {name: plain(getattr(value, name)) for name in fields}
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def made(annotation: Any) -> ToolSpec:
    async def function(p): ...

    function.__annotations__ = {"p": annotation}
    return tool(function).spec


@given(annotation=annotations(), value=JSON_VALUES)
@example(annotation=int, value=True)
@example(annotation=Literal[1, "1", True], value=1.0)
@example(annotation=Box, value={"corner": {"x": 1}, "weights": [True]})
@example(annotation=Point, value={"x": 1, "k": 2})
@example(annotation=float, value=1)
@example(annotation=float, value=10**400)
def test_schema_accepts_exactly_what_the_annotation_accepts(annotation, value):
    checked, fault = check_arguments(made(annotation), {"p": value})
    assert (fault is None) == accepts(annotation, value), fault
    assert checked.keys() == {"p"}


@given(data=st.data(), annotation=annotations())
def test_accepted_values_survive_the_round_trip(data, annotation):
    value = data.draw(values_of(annotation))
    spec = made(annotation)
    sent = json.loads(json.dumps({"p": value}))
    arguments, fault = check_arguments(spec, sent)
    assert fault is None
    built = shape_of(annotation).build(arguments["p"])
    again = plain(built)
    assert check_arguments(spec, {"p": again})[1] is None
    assert plain(shape_of(annotation).build(again)) == again
    assert json.loads(json.dumps(spec.parameters)) == spec.parameters


SEARCH = ToolSpec(
    "search",
    "",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "mode": {"enum": ["fast", "full"]}},
        "required": ["query"],
    },
)
CONFIGURE = ToolSpec(
    "configure",
    "",
    {
        "type": "object",
        "properties": {
            "opts": {"type": "object"},
            "note": {"type": ["string", "null"]},
            "tags": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "minItems": 3},
            "level": {"const": 2},
            "deep": {
                "type": "object",
                "properties": {"n": {"type": "integer"}},
                "additionalProperties": {"type": "string"},
            },
        },
    },
)


@pytest.mark.parametrize(
    ("spec", "arguments", "sentence"),
    [
        (SEARCH, {"query": "x", "limit": 3, "mode": "full"}, None),
        (
            SEARCH,
            {"query": "x", "limit": "ten"},
            "tool 'search': parameter 'limit' must be an integer, found the string 'ten'",
        ),
        (SEARCH, {"query": "x", "limit": True}, "tool 'search': parameter 'limit' must be an integer, found true"),
        (SEARCH, {"query": "x", "limit": 1.0}, "tool 'search': parameter 'limit' must be an integer, found 1.0"),
        (SEARCH, {}, "tool 'search': parameter 'query' is required: expected a string, found nothing"),
        (
            SEARCH,
            {"query": "x", "lang": "en"},
            "tool 'search': unknown parameter 'lang': expected 'query', 'limit', 'mode'",
        ),
        (SEARCH, {"query": "x", "limits": 1}, "tool 'search': unknown parameter 'limits': did you mean 'limit'?"),
        (
            SEARCH,
            {"query": "x", "mode": "slow"},
            "tool 'search': parameter 'mode' must be the string 'fast' or the string 'full', found the string 'slow'",
        ),
        (CONFIGURE, {"opts": {"any": [1, {"thing": None}]}, "note": None, "tags": ["a", None], "level": 2}, None),
        (CONFIGURE, {"deep": {"n": 1, "other": "text"}}, None),
        (
            CONFIGURE,
            {"deep": {"n": 1, "other": 2}},
            "tool 'configure': parameter 'deep.other' must be a string, found 2",
        ),
        (
            CONFIGURE,
            {"tags": ["a", 3]},
            "tool 'configure': parameter 'tags[1]' must be a string or null, found 3",
        ),
        (CONFIGURE, {"level": 3}, "tool 'configure': parameter 'level' must be 2, found 3"),
        (ToolSpec("now", "", {}), {"at": 1}, "tool 'now': unknown parameter 'at': expected no parameters"),
        (ToolSpec("free", "", {"additionalProperties": True}), {"at": 1}, None),
    ],
)
def test_a_fault_names_the_parameter_what_came_and_what_was_expected(spec, arguments, sentence):
    assert check_arguments(spec, arguments) == (arguments, sentence)


def test_a_fault_inside_the_fitting_alternative_is_named():
    spec = made(Point | None)
    assert check_arguments(spec, {"p": {"x": "1"}})[1] == (
        "tool 'function': parameter 'p.x' must be an integer, found the string '1'"
    )


SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["string", "object", "nonsense"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "items",
                    "enum",
                    "const",
                    "anyOf",
                    "oneOf",
                    "additionalProperties",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(SCHEMAS, st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=3))
def test_no_schema_and_no_arguments_raise(schema, arguments):
    parameters: Mapping[str, Any] = schema if isinstance(schema, dict) else {"properties": schema}
    checked, fault = check_arguments(ToolSpec("t", "", parameters), arguments)
    assert checked.keys() == arguments.keys()
    assert fault is None or ("\n" not in fault and fault.startswith("tool 't': "))


def test_hostile_values_are_shown_short():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for name, value in [("limit", "x" * 10**6), ("query", 10**5000), ("limit", deep), ("mode", {"k" * 10**5: deep})]:
        fault = check_arguments(SEARCH, {"query": "x", name: value})[1]
        assert fault is not None
        assert len(fault) < 300
    fault = check_arguments(SEARCH, {"query": "x", "y" * 1_000_000: 1})[1]
    assert fault is not None
    assert len(fault) < 300
    while deep:  # freed from the outside in: a nested free would recurse
        deep = deep[0]
