"""Values as JSON has them, out of what numpy, Arrow and OmegaConf make of them, and mappings laid over mappings."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentkit.runs.dataset.rows import Fault


def deep_merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """`base` with `over` laid over it: mappings merge key by key, all else of `over` replaces. A copy throughout."""
    merged = {key: _copy(value) for key, value in base.items()}
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = deep_merge(cast("Mapping[str, object]", below), cast("Mapping[str, object]", value))
        else:
            merged[key] = _copy(value)
    return merged


def plain(value: object, where: str) -> object:
    """The value in Python's own types: texts, numbers, lists, objects. NaN, which pandas writes for nothing, is None.

    Raises:
        Fault: it is something else; `where` is the name of its place.
    """
    try:
        return _made_plain(value, where)
    except RecursionError:
        raise Fault(f"{where} is nested too deeply") from None


def mapping(value: object, where: str) -> dict[str, Any]:
    """A copy of an object, an empty one for None.

    Raises:
        Fault: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Fault(f"{where} must be an object, found {value!r:.80}")
    return dict(cast("Mapping[str, Any]", value))


def without_nulls(value: object) -> object:
    """The value without keys, at any depth of objects, that are null."""
    if isinstance(value, Mapping):
        held = cast("Mapping[str, object]", value)
        return {key: without_nulls(item) for key, item in held.items() if item is not None}
    return value


def is_listed(value: object) -> bool:
    """Whether it is a list, a tuple, an array of numpy or the like: no text, no bytes."""
    return _is_array(value) or (isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray))


def listed(value: object) -> Sequence[object]:
    """The items of what `is_listed`."""
    return cast("Any", value).tolist() if _is_array(value) else cast("Sequence[object]", value)


def _is_numpy(value: object) -> bool:
    """By name: numpy is needed by who made the value, not by who reads it."""
    return type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist")


def _is_array(value: object) -> bool:
    return _is_numpy(value) and isinstance(cast("Any", value).tolist(), list)


def _made_plain(value: object, where: str) -> object:
    if _is_numpy(value):
        value = cast("Any", value).tolist()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value in (float("inf"), float("-inf")):
            raise Fault(f"{where} is {value!r}, which JSON does not have")
        return None if value != value else float(value)
    if isinstance(value, Mapping):
        made: dict[str, object] = {}
        for key, item in cast("Mapping[object, object]", value).items():
            if not isinstance(key, str):
                raise Fault(f"{where} has the key {key!r:.40}, which is no text")
            made[str(key)] = _made_plain(item, f"{where}.{key}")
        return made
    if is_listed(value):
        return [_made_plain(item, f"{where}[{number}]") for number, item in enumerate(listed(value))]
    if hasattr(value, "isoformat"):  # a date, or a time
        return str(cast("Any", value).isoformat())
    raise Fault(f"{where} must be a plain value, found {type(value).__name__}")


def _copy(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in cast("Sequence[object]", value)]
    return value
