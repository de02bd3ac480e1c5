"""Text to values by schema, for every type and the unions of them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.parsing._typed_text import BadText, json_types, read_text


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"integer", "string"}),
        ({"oneOf": [{"type": "array"}, {"anyOf": [{"type": "null"}]}]}, {"array", "null"}),
        ({"enum": ["a", 1, None, True, 1.5]}, {"string", "integer", "null", "boolean", "number"}),
        ({"const": {"a": 1}}, {"object"}),
        ({"enum": [[1]]}, {"array"}),
        ({"$ref": "#/$defs/Size"}, {"integer"}),
        ({"allOf": [{"$ref": "#/$defs/Size"}]}, {"integer"}),
        ({"$ref": "#/$defs/Loop"}, set()),
        ({"$ref": "#/$defs/Nowhere/else"}, set()),
        ({"$ref": "elsewhere.json"}, set()),
        ({"type": "file"}, set()),
        ({"description": "anything"}, set()),
        (True, set()),
        (None, set()),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    root = {"$defs": {"Size": {"type": "integer"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    if schema == {"$ref": "elsewhere.json"}:
        root = {}
    assert json_types(schema, root) == types


@pytest.mark.parametrize(
    ("types", "text", "value"),
    [
        ("string", " 5 ", " 5 "),
        ("", "[1]", "[1]"),
        ("integer", " -12 ", -12),
        ("integer", "123456789012345678901", 123456789012345678901),
        ("number", "0.50", 0.5),
        ("number", "1e-05", 1e-05),
        ("number", "3", 3),
        ("boolean", "True", True),
        ("boolean", "false", False),
        ("null", "None", None),
        ("array", '[1, "a"]', [1, "a"]),
        ("object", "\n{}\n", {}),
        ("integer null", "None", None),
        ("integer null", "7", 7),
        ("null string", "null", None),
        ("null string", "None ", "None "),
        ("integer string", "5", 5),
        ("integer string", "007", "007"),
        ("integer string", "-0", "-0"),
        ("integer string", " 5", " 5"),
        ("number string", "1e5", "1e5"),
        ("number string", "0.50", "0.50"),
        ("number string", "0.5", 0.5),
        ("array string", '["ls", "-l"]', ["ls", "-l"]),
        ("array string", "[ -f x ]", "[ -f x ]"),
        ("object string", "[1]", "[1]"),
        ("boolean string", "True", True),
        ("boolean string", "yes", "yes"),
        ("array object", "{}", {}),
    ],
)
def test_text_reads_as_its_type(types: str, text: str, value: object) -> None:
    found = read_text(text, frozenset(types.split()))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("types", "text", "reason"),
    [
        ("integer", "3.0", "must be integer, found '3.0'"),
        ("integer", "+3", "must be integer, found '+3'"),
        ("integer", "1_000", "must be integer, found '1_000'"),
        ("integer", "٣", "must be integer, found '٣'"),
        ("integer", "", "must be integer, found ''"),
        ("integer", "9" * 5000, "must be a finite number: an integer has too many digits"),
        ("number", "nan", "must be a finite number, found 'nan'"),
        ("number", "1e999", "must be a finite number: number out of range: 1e999"),
        ("boolean", "1", "must be boolean (true or false), found '1'"),
        ("null", "", "must be null (null), found ''"),
        ("array", "{}", "must be array, found object"),
        ("array", "['a']", "must be array, written as JSON: expecting value at line 1 column 2"),
        ("object", '{"a": 1, "a": 2}', "must be object, written as JSON: duplicate key 'a'"),
        ("integer null", "x", "must be integer or null, found 'x'"),
        ("string", "\ud800", "has a lone surrogate in a string"),
    ],
)
def test_text_of_no_type_is_refused(types: str, text: str, reason: str) -> None:
    with pytest.raises(BadText) as caught:
        read_text(text, frozenset(types.split()))
    assert str(caught.value) == reason


@given(st.text(), st.frozensets(st.sampled_from(["string", "integer", "null", "array"])), st.booleans())
def test_strings_stay_verbatim_and_nothing_else_escapes(text: str, types: frozenset[str], lenient: bool) -> None:
    try:
        value = read_text(text, types, lenient=lenient)
    except BadText:
        assert types - {"string"}
        return
    if isinstance(value, str):
        assert value == text
