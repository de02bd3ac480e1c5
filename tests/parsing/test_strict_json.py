"""JSON with one reading, and where a value ends in a longer text."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.parsing._strict_json import MAX_DEPTH, BadJson, Ending, find_end, read_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(values, st.booleans(), st.booleans())
def test_json_comes_back(value: object, is_ascii: bool, lenient: bool) -> None:
    assert read_json(json.dumps(value, ensure_ascii=is_ascii), lenient=lenient) == value


@given(st.lists(values) | st.dictionaries(st.text(), values), st.text())
def test_end_of_a_value_is_where_json_ends(value: object, after: str) -> None:
    text = "x" + json.dumps(value)
    for lenient in (False, True):
        assert find_end(text + after, 1, lenient=lenient) == (Ending.CLOSED, len(text))


@given(st.lists(values) | st.dictionaries(st.text(), values), st.data())
def test_cut_value_is_open(value: object, data: st.DataObject) -> None:
    text = json.dumps(value)
    ending, _ = find_end(text[: data.draw(st.integers(0, len(text) - 1))], 0)
    assert ending is Ending.OPEN


@pytest.mark.parametrize(
    ("text", "ending", "position"),
    [
        ('{"a": <b>}', Ending.BROKEN, 6),
        ('{"a\nb"}', Ending.BROKEN, 1),
        ('{\\"a"}', Ending.BROKEN, 1),
        ("x", Ending.BROKEN, 0),
        ('{"a": "b', Ending.OPEN, 6),
        ('{"a": "b\\', Ending.OPEN, 6),
    ],
)
def test_scan_stops_where_json_cannot_go_on(text: str, ending: Ending, position: int) -> None:
    assert find_end(text, 0) == (ending, position)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": 2, "a": 3}', "duplicate key 'a'"),
        ('[{"a": 1, "a": 3}]', "duplicate key 'a'"),
        ("[NaN]", "NaN is no JSON value"),
        ("[-Infinity]", "-Infinity is no JSON value"),
        ("1e999", "number out of range: 1e999"),
        ("[" + "9" * 5000 + "]", "an integer has too many digits"),
        ('["\\ud83d"]', "lone surrogate in a string"),
        ('{"\\udc00": 1}', "lone surrogate in a string"),
        ('["\ud800"]', "lone surrogate in a string"),
        ('["a\nb"]', "invalid control character at line 1 column 4"),
        ("[1,]", "expecting value at line 1 column 4"),
        ("[1] 2", "extra data at line 1 column 5"),
        ("", "expecting value at line 1 column 1"),
        ("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}"),
    ],
)
def test_what_has_no_one_reading_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadJson) as caught:
        read_json(text)
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': 'it\\'s', 'b': [None, True, False]}", {"a": "it's", "b": [None, True, False]}),
        ("{'a': 'say \"x\"'}", {"a": 'say "x"'}),
        ('{"a": "None", "a": "it\'s True"}', {"a": "it's True"}),
        ('["a\nb"]', ["a\nb"]),
        ('["\\ud83d", "\\ud83d\\ude00"]', ["�", "\U0001f600"]),
    ],
)
def test_slips_are_mended_only_when_asked(text: str, value: object) -> None:
    assert read_json(text, lenient=True) == value
    with pytest.raises(BadJson):
        read_json(text)


def test_nesting_up_to_the_bound_and_brackets_in_strings_are_fine() -> None:
    assert read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    assert read_json(json.dumps("[" * 1000)) == "[" * 1000
    assert read_json(json.dumps([[]] * 1000)) == [[]] * 1000


def test_an_exhausted_stack_is_a_reason_and_no_crash() -> None:
    def at(frames: int, then: Callable[[], object]) -> object:
        return at(frames - 1, then) if frames else then()

    def read() -> str:
        try:
            return str(read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH))
        except BadJson as error:
            return str(error)

    frames = sys.getrecursionlimit()
    while True:
        with suppress(RecursionError):
            at(frames + 20, lambda: None)
            break
        frames -= 1
    # Twenty frames are enough for the code here, and too few for the value where the frames of C count as well.
    assert at(frames, read) in ("nested too deeply", str(read_json("[" * MAX_DEPTH + "]" * MAX_DEPTH)))
