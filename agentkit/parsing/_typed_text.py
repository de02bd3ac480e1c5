"""Arguments written as bare text, read by the tool's schema.

The template writes objects and arrays as JSON and all else as Python's `str`, so text alone does not tell `"5"` from
`5`: the schema does. Where it allows a string, the text stays verbatim unless it is exactly what another allowed type
would have been written as.
"""

import re
from collections.abc import Mapping, Sequence

from agentkit.parsing._strict_json import BadJson, check_text, read_json
from agentkit.protocols import Json

_MAX_REFS = 16
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_WORDS: Mapping[str, Mapping[str, Json]] = {
    "null": {"None": None, "null": None},
    "boolean": {"True": True, "true": True, "False": False, "false": False},
}
_TYPES = frozenset({"null", "boolean", "integer", "number", "array", "object", "string"})
_ORDER = ("null", "boolean", "integer", "number", "array", "object")


class BadText(ValueError):
    """The message completes "parameter ... "."""


def json_types(schema: Json, root: Json) -> frozenset[str]:
    """The JSON types that `schema` allows; empty where it does not say. `root` resolves its `$ref`s."""
    return frozenset(_types(schema, root, _MAX_REFS)) & _TYPES


def read_text(text: str, types: frozenset[str], *, lenient: bool = False) -> Json:
    """The value of `types` that `text` stands for.

    Raises:
        BadText: it stands for none.
    """
    try:
        if not types:
            return check_text(text, lenient=lenient)
        is_string = "string" in types
        bare = text if is_string else text.strip()
        reason = ""
        for kind in _ORDER:
            if kind in types:
                try:
                    return _READERS[kind](kind, bare, is_string, lenient)
                except BadText as error:
                    reason = str(error)
        if is_string:
            return check_text(text, lenient=lenient)
    except BadJson as error:
        raise BadText(f"has a {error}") from None
    if len(types) == 1:
        raise BadText(reason)
    raise BadText(f"must be {' or '.join(sorted(types))}, found {bare[:40]!r}")


def _types(schema: Json, root: Json, refs: int) -> set[str]:
    if not isinstance(schema, Mapping) or refs < 0:
        return set()
    ref = schema.get("$ref")
    if isinstance(ref, str):
        return _types(_resolve(ref, root), root, refs - 1)
    named = schema.get("type")
    if isinstance(named, str):
        return {named}
    if isinstance(named, Sequence):
        return {item for item in named if isinstance(item, str)}
    for key in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(key)
        if isinstance(parts, Sequence) and not isinstance(parts, str):
            return {kind for part in parts for kind in _types(part, root, refs - 1)}
    if "const" in schema:
        return {_type_of(schema["const"])}
    values = schema.get("enum")
    if isinstance(values, Sequence) and not isinstance(values, str):
        return {_type_of(value) for value in values}
    return set()


def _resolve(ref: str, root: Json) -> Json:
    found = root
    for step in ref.removeprefix("#").split("/")[1:]:
        if not isinstance(found, Mapping):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found


def _type_of(value: Json) -> str:
    if value is None:
        return "null"
    for kind, python in (("boolean", bool), ("integer", int), ("number", float), ("string", str)):
        if isinstance(value, python):
            return kind
    return "object" if isinstance(value, Mapping) else "array"


def _word(kind: str, text: str, is_string: bool, lenient: bool) -> Json:
    words = _WORDS[kind]
    if text not in words:
        raise BadText(f"must be {kind} ({' or '.join(w for w in words if w.islower())}), found {text[:40]!r}")
    return words[text]


def _integer(kind: str, text: str, is_string: bool, lenient: bool) -> Json:
    if _INTEGER.match(text) is None:
        raise BadText(f"must be integer, found {text[:40]!r}")
    return _number(kind, text, is_string, lenient)


def _number(kind: str, text: str, is_string: bool, lenient: bool) -> Json:
    if _NUMBER.match(text) is None:
        raise BadText(f"must be a finite number, found {text[:40]!r}")
    try:
        value = read_json(text)
    except BadJson as error:
        raise BadText(f"must be a finite number: {error}") from None
    return _verbatim_or(value, is_string, text)


def _verbatim_or(value: Json, is_string: bool, text: str) -> Json:
    """`value`, unless a string is as likely: the template would not have written this text for the value."""
    if is_string and str(value) != text:
        raise BadText("reads as a string")
    return value


def _container(kind: str, text: str, is_string: bool, lenient: bool) -> Json:
    python = list if kind == "array" else dict
    try:
        value = read_json(text, lenient=lenient)
    except BadJson as error:
        raise BadText(f"must be {kind}, written as JSON: {error}") from None
    if not isinstance(value, python):
        raise BadText(f"must be {kind}, found {_type_of(value)}")
    return value


_READERS = {
    "null": _word,
    "boolean": _word,
    "integer": _integer,
    "number": _number,
    "array": _container,
    "object": _container,
}
