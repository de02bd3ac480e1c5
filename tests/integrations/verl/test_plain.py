"""Plain values out of numpy's and others, and mappings laid over mappings."""

import copy
import json
from collections.abc import Mapping
from datetime import date
from typing import Any

import pytest
from agentkit_verl.plain import deep_merge, plain, without_nulls
from hypothesis import given
from hypothesis import strategies as st

from agentkit.runs.dataset.rows import Fault

KEYS = st.sampled_from("abc")
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)
MAPPINGS = st.dictionaries(KEYS, VALUES, max_size=3)


def leaves(value: object, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], object]:
    """What is at the end of each path of keys; a mapping without keys is an end, too."""
    if isinstance(value, Mapping) and value:
        return {end: leaf for key, item in value.items() for end, leaf in leaves(item, (*path, key)).items()}
    return {path: value}


def merged_by_leaves(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """The obvious twin: what `over` says ends whatever `base` says on the same way, unless both go on."""
    result = copy.deepcopy(base)
    for path, leaf in leaves(over).items():
        if path == ():
            continue
        at = result
        for key in path[:-1]:
            if not isinstance(at.get(key), dict):
                at[key] = {}
            at = at[key]
        if leaf != {} or not isinstance(at.get(path[-1]), dict):
            at[path[-1]] = copy.deepcopy(leaf)
    return result


@given(MAPPINGS, MAPPINGS)
def test_merging_lays_what_is_at_the_end_of_each_path_over_the_other(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    assert deep_merge(base, over) == merged_by_leaves(base, over)


@given(MAPPINGS)
def test_nothing_laid_over_or_under_changes_nothing(value: dict[str, Any]) -> None:
    assert deep_merge(value, {}) == value
    assert deep_merge({}, value) == value
    assert deep_merge(value, value) == value


def spoil(value: Any) -> None:
    """Change everything that can be changed in place."""
    for item in list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, list) else ():
        spoil(item)
    if isinstance(value, dict):
        value["spoilt"] = True
    elif isinstance(value, list):
        value.append("spoilt")


@given(MAPPINGS, MAPPINGS)
def test_a_merged_mapping_shares_nothing_with_those_it_is_made_of(base: dict[str, Any], over: dict[str, Any]) -> None:
    kept = copy.deepcopy((base, over))
    spoil(deep_merge(base, over))
    assert (base, over) == kept


@given(VALUES)
def test_plain_values_stay_as_they_are(value: object) -> None:
    assert plain(value, "it") == value
    assert json.loads(json.dumps(plain(value, "it"))) == value


def test_numbers_and_arrays_of_numpy_become_pythons_own() -> None:
    numpy = pytest.importorskip("numpy")
    given = {
        "i": numpy.int64(3),
        "f": numpy.float32(0.5),
        "b": numpy.bool_(True),
        "s": numpy.str_("x"),
        "nan": numpy.float64("nan"),
        "a": numpy.array([[1, 2], [3, 4]]),
        "o": numpy.array([{"x": numpy.int32(1)}, None], dtype=object),
        "z": numpy.array(7),
        "d": date(2026, 1, 2),
    }
    made: Any = plain(given, "it")
    assert made == {
        "i": 3,
        "f": 0.5,
        "b": True,
        "s": "x",
        "nan": None,
        "a": [[1, 2], [3, 4]],
        "o": [{"x": 1}, None],
        "z": 7,
        "d": "2026-01-02",
    }
    assert [type(made[key]) for key in "ifbs"] == [int, float, bool, str]
    assert type(made["o"][0]["x"]) is int


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"a": [1, b"x"]}, r"it\.a\[1\] must be a plain value, found bytes"),
        ({"a": {1: 2}}, r"it\.a has the key 1, which is no text"),
        ([float("inf")], r"it\[0\] is inf, which JSON does not have"),
        ({"a": object()}, r"it\.a must be a plain value, found object"),
    ],
)
def test_what_is_not_plain_is_named_by_its_place(value: object, told: str) -> None:
    with pytest.raises(Fault, match=told):
        plain(value, "it")


def test_values_that_hold_themselves_are_refused() -> None:
    value: list[object] = []
    value.append(value)
    with pytest.raises(Fault, match="it is nested too deeply"):
        plain(value, "it")


def test_nulls_are_left_out_of_objects_and_kept_in_lists() -> None:
    assert without_nulls({"a": None, "b": {"c": None, "d": [None, 1]}}) == {"b": {"d": [None, 1]}}
