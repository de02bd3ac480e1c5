"""Values and annotations: each fits exactly what it is, and nothing is coerced."""

import dataclasses
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit.protocols import Budget, Json, Message, SandboxSpec
from agentkit.runs.config.problems import Problems, spell
from agentkit.runs.config.values import StrictValues


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Level(Enum):
    LOW = 1
    HIGH = 2


@attrs.frozen
class Inner:
    count: int
    names: tuple[str, ...] = ()
    note: str | None = None


@attrs.frozen
class Outer:
    inner: Inner
    by_name: Mapping[str, Inner] = attrs.field(factory=dict)
    _hidden: float = 0.5
    free: object = None


@attrs.frozen
class Unannotated:
    converted = attrs.field(default=0, converter=str)


@dataclasses.dataclass
class Data:
    size: int
    tags: list[str] = dataclasses.field(default_factory=list)


UserId = NewType("UserId", int)
VALUES = StrictValues(lambda value, hint: ("component", value), folder=Path("/base"))


def fits(value: object, hint: object) -> bool:
    try:
        VALUES.structure(value, hint)
    except Problems:
        return False
    return True


def problems(value: object, hint: object) -> dict[str, str]:
    with pytest.raises(Problems) as caught:
        VALUES.structure(value, hint)
    return {spell(problem.path): problem.text for problem in caught.value.problems}


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 1.0, -2.0])
    | st.sampled_from(["", "red", "1", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "red"]), inner, max_size=2),
    max_leaves=6,
)
SCALARS = {int: [int], float: [int, float], str: [str], bool: [bool], type(None): [type(None)]}
hints = st.recursive(
    st.sampled_from([*SCALARS, Any, object, Colour, Level, Literal["x", 1, True], UserId, Annotated[int, "x"], "Json"]),
    lambda inner: st.one_of(
        inner.map(lambda hint: list[hint]),
        inner.map(lambda hint: tuple[hint, ...]),
        inner.map(lambda hint: Sequence[hint]),
        inner.map(lambda hint: dict[str, hint]),
        inner.map(lambda hint: Mapping[str, hint]),
        inner.map(lambda hint: typing.Optional.__getitem__(hint)),
        st.tuples(inner, inner).map(lambda pair: tuple[pair]),
        st.tuples(inner, inner).map(lambda pair: typing.Union.__getitem__(pair)),
    ),
    max_leaves=4,
)


def accepts(hint: object, value: object) -> bool:
    """The slow way: what the annotation says, read aloud."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint in (Any, object, "Json", Json, typing.ForwardRef("Json")):
        return True
    if hint in SCALARS:
        return type(value) in SCALARS[hint]
    if hint is UserId or origin is Annotated:
        return type(value) is int
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return any(type(value) is type(each.value) and value == each.value for each in hint)
    if origin is typing.Union:
        return any(accepts(each, value) for each in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return (
            isinstance(value, list)
            and len(value) == len(arguments)
            and all(accepts(each, item) for each, item in zip(arguments, value, strict=True))
        )
    if origin in (dict, typing.get_origin(Mapping[str, int])):
        return isinstance(value, dict) and all(accepts(arguments[1], item) for item in value.values())
    return isinstance(value, list) and all(accepts(arguments[0], item) for item in value)


@given(hints, plain)
@example(int, True)
@example(float, True)
@example(int, 1.0)
@example(float, 1)
@example(Literal["x", 1], True)
@example(str, 1)
@example(dict[str, typing.Optional["Json"]], {"a": False})  # a reference by name
def test_a_value_fits_exactly_what_its_annotation_says(hint, value) -> None:
    real = typing.cast("Any", _with_json(hint))
    assert fits(value, real) == accepts(hint, value)


def _with_json(hint: object) -> object:
    if hint == "Json":
        return Json
    arguments = typing.get_args(hint)
    if not arguments or "Json" not in str(hint):
        return hint
    return hint  # nested: a forward reference to a name that stands for it


@pytest.mark.parametrize(
    ("value", "hint", "made"),
    [
        (3, float, 3.0),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 2], Iterable[int], [1, 2]),
        (["a"], set[str], {"a"}),
        (["a"], frozenset[str], frozenset({"a"})),
        ("red", Colour, Colour.RED),
        (2, Level, Level.HIGH),
        ({"red": 1}, Mapping[Colour, int], {Colour.RED: 1}),
        ("x/y", Path, Path("/base/x/y")),
        ("/x", Path, Path("/x")),
        ("x", str | Path, "x"),
        ("x", Path | None, Path("/base/x")),
        ({"count": 1, "names": ["a"]}, Inner, Inner(1, ("a",))),
        ({"count": 1, "names": None, "note": None}, Inner, Inner(1)),
        ({"inner": {"count": 1}, "hidden": 2, "free": [1]}, Outer, Outer(Inner(1), hidden=2.0, free=[1])),
        ({"converted": 5}, Unannotated, Unannotated("5")),
        ({"size": 1, "tags": ["a"]}, Data, Data(1, ["a"])),
        ("mod:x", Callable[[], int], ("component", "mod:x")),
        ("mod:x", Sequence[str] | Callable[[str], str], ("component", "mod:x")),
        (["a"], Sequence[str] | Callable[[str], str], ["a"]),
        ({"use": "mod:x"}, SandboxSpec, ("component", {"use": "mod:x"})),
        ({"a": [1, {"use": "x"}]}, Mapping[str, Json], {"a": [1, {"use": "x"}]}),
    ],
)  # fmt: skip
def test_what_is_made(value: object, hint: object, made: object) -> None:
    assert VALUES.structure(value, hint) == made
    assert type(VALUES.structure(value, hint)) is type(made)


@pytest.mark.parametrize(
    ("value", "hint", "path", "text"),
    [
        ("3", int, "", "must be a whole number, found the text '3'"),
        (1.0, int, "", "must be a whole number, found the number 1.0: write it without a point"),
        (True, float, "", "must be a number, found true"),
        (3, str, "", "must be text, found the number 3: quote it"),
        ("abc", list[str], "", "must be a list, found the text 'abc'"),
        ([1], dict[str, int], "", "must be a mapping, found a list of 1"),
        (10**400, float, "", "must be a number that a float can hold, found a whole number of 1329 bits"),
        (["a", "a"], set[str], "", "has some value twice: 2 are given, 1 are distinct"),
        ("rde", Colour, "", "is 'rde', which it cannot be: did you mean 'red'?"),
        ({"count": "1"}, Inner, "count", "must be a whole number, found the text '1'"),
        ({}, Inner, "count", "is missing: Inner needs it"),
        ({"count": 1, "nmaes": []}, Inner, "nmaes", "is unknown: did you mean 'names'?"),
        ({"inner": {"count": 1}, "by_name": {"a": {"count": 1, "names": ["x", 3]}}}, Outer, "by_name.a.names[1]",
         "must be text, found the number 3: quote it"),
        ({"inner": {"count": 1}, "_hidden": 1}, Outer, "_hidden", "is unknown: did you mean 'hidden'?"),
        (3, str | None, "", "must be text or null, found the number 3"),
        ([[1], ["a"]], list[list[int]], "[1][0]", "must be a whole number, found the text 'a'"),
        ({"max_turns": 0}, Budget, "max_turns", "must be a number >= 1, found 0"),
        ({"role": "usr", "content": "x"}, Message, "role", "is 'usr', which it cannot be: did you mean 'user'?"),
    ],
)  # fmt: skip
def test_what_is_told(value: object, hint: object, path: str, text: str) -> None:
    assert problems(value, hint) == {path: text}


def test_all_problems_of_a_value_are_told() -> None:
    value = {"inner": {"count": "x", "nam": 1}, "by_name": {"a": 3, "b": {}}, "hidden": True, "more": 1}
    assert set(problems(value, Outer)) == {"inner.count", "inner.nam", "by_name.a", "by_name.b.count", "hidden", "more"}


def test_a_key_error_of_a_class_is_not_taken_for_a_missing_field() -> None:
    @attrs.frozen
    class Broken:
        count: int

        def __attrs_post_init__(self) -> None:
            raise KeyError("count")

    assert problems({"count": 1}, Broken) == {"": "is not accepted: KeyError: 'count'"}


def test_a_key_error_within_a_field_is_not_taken_for_its_absence() -> None:
    @attrs.frozen
    class Holder:
        part: Inner

    def broken(_: object) -> object:
        raise KeyError("deep inside")

    values = StrictValues(lambda value, hint: value)
    values.register(Inner, broken)
    with pytest.raises(Problems) as caught:
        values.structure({"part": {}}, Holder)
    assert [problem.text for problem in caught.value.problems] == ["is not accepted: KeyError: 'deep inside'"]


def test_validators_of_attrs_are_told_with_their_field() -> None:
    @attrs.frozen
    class Checked:
        width: int = attrs.field(validator=attrs.validators.gt(0))
        name: str = attrs.field(default="a", validator=attrs.validators.matches_re("[a-z]+"))

    assert problems({"width": 0}, Checked) == {"": "is not accepted: ValueError: 'width' must be > 0: 0"}
    told = problems({"width": 1, "name": "A"}, Checked)
    assert "'name' must match regex" in told["name"]


def test_lists_that_are_made_are_not_those_that_were_given() -> None:
    given_list = [1, [2]]
    made = VALUES.structure(given_list, Any)
    assert made == given_list
    assert made is not given_list
    assert made[1] is not given_list[1]
