"""Arguments against a tool's schema: what the policy wrote wrong, in one sentence it can act on.

The subset of JSON Schema that is understood: `type` (one or a list), `properties`, `required`, `additionalProperties`,
`items`, `enum`, `const`, `anyOf` and `oneOf` (both: at least one fits). Other keywords are ignored. Three rules are
stricter than the standard: an integer is written without a point, a number fits a double, and an object that lists
`properties` takes no others unless `additionalProperties` says so; the arguments themselves never do.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches

from agentkit.protocols.messages import Json, ToolSpec

_SHOWN_CHARS = 60
_SHOWN_NAMES = 12


def check_arguments(spec: ToolSpec, arguments: Mapping[str, Json]) -> tuple[dict[str, Json], str | None]:
    """The arguments with None where they fit the schema of `spec`, else with the sentence to answer the policy.

    Nothing is converted, and nothing raises, whatever the arguments are.
    """
    schema: dict[str, Json] = {"type": "object", "properties": {}}
    schema |= spec.parameters
    fault = _fault(schema, arguments, "")
    return dict(arguments), None if fault is None else f"tool {spec.name!r}: {fault}"


def fault_of(schema: Mapping[str, Json], value: Json) -> str | None:
    """Why `value` does not fit `schema`, or None."""
    return _fault(schema, value, "")


def _fault(schema: Json, value: Json, path: str) -> str | None:
    if not isinstance(schema, Mapping):  # `true`, or something no schema can be: anything fits
        return None
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(alternatives, list | tuple) and all(_fault(each, value, path) for each in alternatives):
        return _closest(schema, alternatives, value, path)
    if not _fits_type(schema.get("type"), value):
        return _mismatch(schema, value, path)
    if "const" in schema and not _same(schema["const"], value):
        return _mismatch(schema, value, path)
    choices = schema.get("enum")
    if isinstance(choices, list | tuple) and not any(_same(choice, value) for choice in choices):
        return _mismatch(schema, value, path)
    if isinstance(value, Mapping):
        return _object_fault(schema, value, path)
    if isinstance(value, list | tuple) and "items" in schema:
        for index, item in enumerate(value):
            if fault := _fault(schema["items"], item, f"{path}[{index}]"):
                return fault
    return None


def _object_fault(schema: Mapping[str, Json], value: Mapping[str, Json], path: str) -> str | None:
    properties = schema.get("properties")
    known: Mapping[str, Json] = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list | tuple) else ():
        if isinstance(name, str) and name not in value:
            shape = known.get(name)
            return f"parameter {_join(path, name)!r} is required: expected {_expected(shape)}, found nothing"
    extra = schema.get("additionalProperties", properties is None)
    for name, item in value.items():
        if name in known:
            fault = _fault(known[name], item, _join(path, name))
        elif extra is False:
            fault = _unknown(name, known, path)
        else:
            fault = _fault(extra, item, _join(path, name))
        if fault:
            return fault
    return None


def _unknown(name: str, known: Mapping[str, Json], path: str) -> str:
    near = get_close_matches(name[:_SHOWN_CHARS], known, n=1)
    if near:
        hint = f"did you mean {_join(path, near[0])!r}?"
    elif known:
        names = [repr(each) for each in known]
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        hint = f"expected {', '.join(names[:_SHOWN_NAMES])}{more}"
    else:
        hint = "expected no parameters"
    return f"unknown parameter {_join(path, name[:_SHOWN_CHARS])!r}: {hint}"


def _closest(schema: Mapping[str, Json], alternatives: Sequence[Json], value: Json, path: str) -> str | None:
    """The fault inside the one alternative of the right type, where there is exactly one, else that none fits."""
    same_type = [each for each in alternatives if isinstance(each, Mapping) and _fits_type(each.get("type", ()), value)]
    return _fault(same_type[0], value, path) if len(same_type) == 1 else _mismatch(schema, value, path)


def _mismatch(schema: Mapping[str, Json], value: Json, path: str) -> str:
    subject = f"parameter {path!r}" if path else "the arguments"
    return f"{subject} must be {_expected(schema)}, found {_found(value)}"


def _is_integer(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Json) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


_TYPE_CHECKS: Mapping[str, Callable[[Json], bool]] = {
    "string": lambda value: isinstance(value, str),
    "integer": _is_integer,
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, Mapping),
}


def _fits_type(wanted: Json, value: Json) -> bool:
    if wanted is None:
        return True
    names = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(names, list | tuple):
        return True
    checks = (_TYPE_CHECKS.get(name) for name in names if isinstance(name, str))
    return any(check is None or check(value) for check in checks)


def _same(a: Json, b: Json) -> bool:
    """Equality that tells 1, 1.0 and true apart, as the annotations do."""
    return type(a) is type(b) and a == b


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _expected(schema: Json) -> str:
    if not isinstance(schema, Mapping):
        return "a value"
    if isinstance(choices := schema.get("enum"), list | tuple):
        shown = " or ".join(_found(choice) for choice in choices[:_SHOWN_NAMES])
        return f"{shown} or one of {len(choices) - _SHOWN_NAMES} more" if len(choices) > _SHOWN_NAMES else shown
    if "const" in schema:
        return _found(schema["const"])
    alternatives = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(alternatives, list | tuple):
        return " or ".join(_expected(each) for each in alternatives)
    wanted = schema.get("type")
    names = wanted if isinstance(wanted, list | tuple) else (wanted,)
    return " or ".join(_expected_type(name, schema) for name in names)


def _expected_type(name: Json, schema: Mapping[str, Json]) -> str:
    if name == "array":
        items = schema.get("items")
        return f"an array (each item {_expected(items)})" if isinstance(items, Mapping) and items else "an array"
    if name == "object":
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and properties:
            return f"an object with {', '.join(repr(key) for key in properties)}"
        values = schema.get("additionalProperties")
        return f"an object (each value {_expected(values)})" if isinstance(values, Mapping) and values else "an object"
    words = {"integer": "an integer", "null": "null", "boolean": "true or false"}
    return words.get(name, f"a {name}") if isinstance(name, str) else "a value"


def _found(value: Json) -> str:
    """A short description of a value of any size or depth."""
    if isinstance(value, str):
        return f"the string {value[:_SHOWN_CHARS]!r}{'...' if len(value) > _SHOWN_CHARS else ''}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return f"{value}" if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return f"an object of {len(value)}"
    return f"an array of {len(value)}"
