"""From a row to a task, strictly: nothing is guessed, and what is wrong is named by its field."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from hashlib import sha256
from typing import Literal, NoReturn

from attrs import fields, frozen

from agentkit.errors import ConfigError
from agentkit.protocols import Budget, Message, Task, ToolCall

_MAPPINGS = ("data", "budget", "metadata", "overrides")
_WHOLE = {each.name for each in fields(Budget) if each.type is int}
_TEXTS = ("name", "tool_call_id", "reasoning")


class Fault(Exception):
    """What is wrong with a row: field and fault, to be told with the place of the row."""


@frozen
class RowFormat:
    """How the fields of a row are called, and what happens to those that a task does not have."""

    id_field: str = "id"
    prompt_field: str = "prompt"
    extra: Literal["error", "data"] = "error"


def parse_json(raw: bytes) -> object:
    """The JSON value that `raw` is: UTF-8, no key twice, no NaN, no lone surrogates.

    Raises:
        Fault: it is something else.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Fault(f"must be UTF-8, found the byte {raw[error.start]:#04x} at {error.start}") from None
    try:
        value: object = json.loads(
            text, parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_without_doubles
        )
    except json.JSONDecodeError as error:
        raise Fault(f"is no JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:  # an integer of thousands of digits
        raise Fault(f"is no JSON that can be read: {str(error)[:100]}") from None
    except RecursionError:
        raise Fault("is nested too deeply") from None
    if "\\u" in text:
        _refuse_surrogates(value, "")
    return value


def task_of(row: object, number: int, form: RowFormat, *, columns: bool = False) -> Task:
    """The task that `row`, the one with this number from 0, asks for.

    In `columns` a field is there in every row: one that is null is not given, nor is null inside a budget or an
    override, and mappings may be JSON in text.

    Raises:
        Fault: a field is missing, unknown, or not what it should be.
        ConfigError: a check of `Task` says so.
    """
    if not isinstance(row, Mapping):
        raise Fault(f"must be an object, found {_shown(row)}")
    rest = {key: value for key, value in row.items() if value is not None} if columns else dict(row)
    task_id = _task_id(rest.pop(form.id_field, None), form.id_field, row, number)
    messages = _opening(rest, form)
    mappings = {name: _mapping(rest.pop(name, None), name, columns) for name in _MAPPINGS}
    data, overrides = mappings["data"], mappings["overrides"]
    if rest and form.extra == "error":
        _refuse_unknown(rest, form)
    for name, value in rest.items():
        if name in data:
            raise Fault(f"{name} is given twice: as a field of the row, and in its data")
        data[name] = value
    if overrides:
        if "overrides" in mappings["metadata"]:
            raise Fault("metadata.overrides and overrides are both given: give one")
        mappings["metadata"]["overrides"] = overrides
    budget = mappings["budget"]
    for name, value in budget.items():
        if name in _WHOLE and not isinstance(value, int):
            raise Fault(f"budget.{name} must be a whole number, found {_shown(value)}")
    return Task(task_id, messages, data, budget, mappings["metadata"])  # type: ignore[arg-type]  # Budget checks


def _task_id(value: object, name: str, row: Mapping[str, object], number: int) -> str:
    if value is None:
        digest = sha256(json.dumps(row, sort_keys=True, default=repr).encode()).hexdigest()[:8]
        return f"row{number}-{digest}"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise Fault(f"{name} must be a text that is not empty, or a whole number, found {_shown(value)}")
    return value


def _opening(rest: dict[str, object], form: RowFormat) -> str | tuple[Message, ...]:
    given = [name for name in ("messages", form.prompt_field) if name in rest]
    if len(given) > 1 and given[0] != given[1]:
        raise Fault(f"messages and {form.prompt_field} are both given: give one")
    if not given:
        return ()
    name, value = given[0], rest.pop(given[0])
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise Fault(f"{name} must be a text or a list of messages, found {_shown(value)}")
    return tuple(_message(item, f"{name}[{index}]") for index, item in enumerate(value))


def _message(item: object, where: str) -> Message:
    if not isinstance(item, Mapping):
        raise Fault(f"{where} must be an object with role and content, found {_shown(item)}")
    given = {key: value for key, value in item.items() if value is not None}
    role, content, calls = given.pop("role", None), given.pop("content", ""), given.pop("tool_calls", [])
    texts = {name: given.pop(name) for name in _TEXTS if name in given}
    if given:
        raise Fault(f"{where} has the unknown fields {', '.join(sorted(map(repr, given)))[:200]}")
    if "content" not in item and not calls:
        raise Fault(f"{where}.content is missing")
    for name, value in {"role": role, "content": content, **texts}.items():
        if not isinstance(value, str):
            raise Fault(f"{where}.{name} must be text, found {_shown(value)}")
    if not isinstance(calls, list):
        raise Fault(f"{where}.tool_calls must be a list, found {_shown(calls)}")
    made = tuple(_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls))
    try:
        return Message(role, content, made, **texts)
    except ConfigError as error:
        raise Fault(f"{where}: {error}") from None


def _call(item: object, where: str) -> ToolCall:
    """A call as `ToolCall` has it, or as the OpenAI API writes it."""
    if not isinstance(item, Mapping):
        raise Fault(f"{where} must be an object, found {_shown(item)}")
    function = item.get("function", item)
    call_id = item.get("id")
    name, arguments = (function.get("name"), function.get("arguments", {})) if isinstance(function, Mapping) else (0, 0)
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments.encode("utf-8", "surrogatepass"))
        except Fault as error:
            raise Fault(f"{where}: its arguments {error}") from None
    if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise Fault(f"{where} must have an id, a name and arguments, found {_shown(item)}")
    return ToolCall(call_id, name, dict(arguments))


def _mapping(value: object, name: str, columns: bool) -> dict[str, object]:
    if columns and isinstance(value, str):
        try:
            value = parse_json(value.encode("utf-8", "surrogatepass"))
        except Fault as error:
            raise Fault(f"{name} {error}") from None
    elif columns and name in ("budget", "overrides"):
        value = _without_nulls(value)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Fault(f"{name} must be an object, found {_shown(value)}")
    return dict(value)


def _without_nulls(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _refuse_unknown(rest: Mapping[str, object], form: RowFormat) -> NoReturn:
    known = (form.id_field, "messages", form.prompt_field, *_MAPPINGS)
    told = []
    for name in sorted(rest):
        close = get_close_matches(name, known, n=1)
        told.append(f"{name!r:.80}" + (f" (did you mean {close[0]!r}?)" if close else ""))
    raise Fault(
        f"has the unknown fields {', '.join(told)[:300]}: the fields are {', '.join(dict.fromkeys(known))}; "
        "extra: data puts others into data"
    )


def _no_constant(text: str) -> NoReturn:
    raise Fault(f"is no JSON: it holds {text}, which JSON does not have")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise Fault(f"holds {text[:40]}, which no float can hold")
    return number


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = sorted({key for key in keys if keys.count(key) > 1}) if len(keys) < 1000 else ["some key"]
        raise Fault(f"has the key {twice[0]!r:.80} twice")
    return made


def _refuse_surrogates(value: object, where: str) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(value[error.start]):04X}"
            raise Fault(f"{where or 'it'} holds half a character ({half}), which no tokenizer can encode") from None
    elif isinstance(value, Mapping):
        for key, item in value.items():
            _refuse_surrogates(key, f"a key of {where or 'it'}")
            _refuse_surrogates(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_surrogates(item, f"{where}[{index}]")


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return f"an object with {', '.join(sorted(map(repr, value)))[:120]}" if value else "an empty object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    return f"{value!r:.80}"
