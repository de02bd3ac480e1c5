"""Free-form values (metadata, arguments, task data) as JSON and back, losing nothing without a note.

JSON's own types travel as they are. What JSON lacks is tagged by a one-key object whose key starts with `$`:

    {"$tuple": [...]}   {"$bytes": "base64"}   {"$int": "0x..."}   {"$map": [[key, value], ...]}
    {"$opaque": [type, repr, plain]}

An object whose keys are not all plain strings free of a leading `$` is written as `$map`, so no text can pose as a tag.
What cannot be written at all becomes an `Opaque`: the type's name and its repr, which stays itself from then on.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from attrs import frozen

_MAX_DEPTH = 64  # json's C code recurses too: deeper values would make a record that nobody can read back
_MAX_REPR = 65_536
_SMALL_INT = 1 << 63  # larger ones are written in hexadecimal: Python refuses decimal text of more than 4300 digits


@frozen
class Opaque:
    """What is left of a value that JSON cannot hold: type and repr; `plain` where it was a kind of str or number."""

    type_name: str
    text: str
    plain: bool | int | float | str | None = None


def pack(value: object) -> Any:
    """`value` as something `json.dumps` takes, from which `unpack` makes an equal value or an `Opaque`.

    Mappings come back as dicts; lists and tuples keep their kind.
    """
    return _pack(value, ())


def _pack(value: object, path: tuple[int, ...]) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is float or kind is str:
        return value
    if kind is int and isinstance(value, int):  # the second half is for the type checker, here and below
        return value if -_SMALL_INT <= value < _SMALL_INT else {"$int": hex(value)}
    if isinstance(value, Opaque):
        return {"$opaque": [value.type_name, value.text, _pack(value.plain, path)]}
    if kind is bytes and isinstance(value, bytes):
        return {"$bytes": b64encode(value).decode()}
    if len(path) >= _MAX_DEPTH or id(value) in path:
        return _pack(_opaque(value), path)
    inner = (*path, id(value))
    if (kind is list or kind is tuple) and isinstance(value, list | tuple):
        items = [_pack(item, inner) for item in value]
        return items if kind is list else {"$tuple": items}
    if isinstance(value, Mapping):
        try:
            pairs = list(value.items())
        except Exception:  # a mapping of the user's own, which may do anything
            return _pack(_opaque(value), path)
        if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
            return {key: _pack(item, inner) for key, item in pairs}
        return {"$map": [[_pack_key(key, inner), _pack(item, inner)] for key, item in pairs]}
    return _pack(_opaque(value), path)


def _pack_key(key: object, path: tuple[int, ...]) -> Any:
    packed = _pack(key, path)
    try:
        hash(unpack(packed))
    except TypeError:  # a hashable mapping, which would come back as a dict
        return _pack(_opaque(key), path)
    return packed


def _opaque(value: object) -> Opaque:
    kind, plain = type(value), None
    try:
        text, plain = repr(value), _plain(value)
    except Exception as error:  # also RecursionError: the repr is the user's code
        text = f"<repr failed: {type(error).__name__}>"
    if len(text) > _MAX_REPR:
        text = f"{text[:_MAX_REPR]}... ({len(text)} characters)"
    return Opaque(f"{kind.__module__}.{kind.__qualname__}", text, plain)


def _plain(value: object) -> int | float | str | None:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else None


def unpack(value: Any) -> Any:
    """The value that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        tag, body = next(iter(value.items()))
        match tag:
            case "$tuple":
                return tuple(unpack(item) for item in body)
            case "$bytes":
                return b64decode(body)
            case "$int":
                return int(body, 16)
            case "$map":
                return {unpack(key): unpack(item) for key, item in body}
            case "$opaque":
                return Opaque(body[0], body[1], unpack(body[2]))
            case _:
                pass
    return {key: unpack(item) for key, item in value.items()}
