"""JSON as a policy must write it: one reading only, and every value fit to be sent on.

Stricter than `json.loads`: no duplicate keys, no NaN or Infinity, no float that overflows, no lone surrogate, a bound
on nesting. `lenient` mends what can be mended without guessing what was meant.
"""

import json
import math
import re
from enum import Enum, auto
from typing import NoReturn

from agentkit.protocols import Json

MAX_DEPTH = 100
"""Far below what exhausts a stack in anything that walks the value later."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*"')
_LENIENT_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"' + r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'", re.DOTALL)
_UNENDED = re.compile(r'"[^"\\\x00-\x1f]*(?:\\.[^"\\\x00-\x1f]*)*\\?\Z')
_LENIENT_UNENDED = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*\\?\Z', re.DOTALL)
_SCAN = (_STRING, _UNENDED, re.compile(r'[^"\\<{}\[\]]*'))
_LENIENT_SCAN = (_LENIENT_STRING, _LENIENT_UNENDED, re.compile(r"""[^"'\\<{}\[\]]*"""))
# The last alternative spends the rest of the text on a string without end, so that no later quote tries it again.
_PYTHON_TOKEN = re.compile(_LENIENT_STRING.pattern + r"""|\b(?:None|True|False)\b|["'].*""", re.DOTALL)
_PYTHON_NAMES = {"None": "null", "True": "true", "False": "false"}


class BadJson(ValueError):
    """The message says what is wrong and where, for the policy to read."""


class Ending(Enum):
    """How a bracketed value ends in a longer text."""

    CLOSED = auto()
    """The brackets balance; the position is just past the last one."""
    OPEN = auto()
    """The text ends first; the position is where the unended string starts, or the end of the text."""
    BROKEN = auto()
    """Something that cannot be JSON comes first, at the position."""


def find_end(text: str, start: int, *, lenient: bool = False) -> tuple[Ending, int]:
    """Where the bracketed value at `start` ends, looking only at brackets and strings.

    It stops at `<` and at a backslash outside strings. So a scan from one tag runs into the next tag unless that is
    in a string, and of two scans that overlap one dies at every tag: scanning from all tags of a text is linear.
    """
    string, unended, outside = _LENIENT_SCAN if lenient else _SCAN
    if text[start : start + 1] not in ("{", "["):
        return (Ending.BROKEN, start) if start < len(text) else (Ending.OPEN, start)
    depth = 0
    position = start
    while position < len(text):
        char = text[position]
        if char in "{[":
            depth += 1
        elif char in "}]":
            depth -= 1
            if depth == 0:
                return Ending.CLOSED, position + 1
        elif char in "\"'":
            match = string.match(text, position)
            if match is None:
                return (Ending.BROKEN if unended.match(text, position) is None else Ending.OPEN), position
            position = match.end() - 1
        else:
            return Ending.BROKEN, position
        position = _end_of(outside, text, position + 1)
    return Ending.OPEN, position


def read_json(text: str, *, lenient: bool = False) -> Json:
    """The value that `text` holds.

    Raises:
        BadJson: it holds none, or one with two readings.
    """
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise BadJson(f"nested deeper than {MAX_DEPTH}")
    decoder = _LENIENT if lenient else _STRICT
    try:
        try:
            value: Json = decoder.decode(text)
        except json.JSONDecodeError:
            if not lenient:
                raise
            value = decoder.decode(_PYTHON_TOKEN.sub(_to_json_token, text))
    except json.JSONDecodeError as error:
        message = error.msg[0].lower() + error.msg[1:].removesuffix(" at")
        raise BadJson(f"{message} at line {error.lineno} column {error.colno}") from None
    except BadJson:
        raise
    except ValueError:
        raise BadJson("an integer has too many digits") from None
    except RecursionError:
        raise BadJson("nested too deeply") from None
    if "\\u" in text or _SURROGATE.search(text):
        return _without_surrogates(value, lenient=lenient)
    return value


def check_text(text: str, *, lenient: bool = False) -> str:
    """`text` if it can be encoded.

    Raises:
        BadJson: it holds a lone surrogate (replaced where `lenient`).
    """
    if _SURROGATE.search(text) is None:
        return text
    if not lenient:
        raise BadJson("lone surrogate in a string")
    return _SURROGATE.sub("\ufffd", text)


def _end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _depth(text: str) -> int:
    depth = deepest = position = 0
    while position < len(text):
        char = text[position]
        if char == '"':
            match = _LENIENT_STRING.match(text, position)
            if match is None:
                break
            position = match.end()
            continue
        depth += (char in "[{") - (char in "]}")
        deepest = max(deepest, depth)
        position += 1
    return deepest


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJson(f"duplicate key {key!r}")
            seen.add(key)
    return result


def _no_constant(name: str) -> NoReturn:
    raise BadJson(f"{name} is no JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise BadJson(f"number out of range: {digits[:40]}")
    return value


def _to_json_token(match: re.Match[str]) -> str:
    token = match.group()
    if token[0] != "'" or token[-1] != "'" or len(token) < 2:
        return _PYTHON_NAMES.get(token, token)
    return '"' + token[1:-1].replace("\\'", "'").replace('"', '\\"') + '"'


def _without_surrogates(value: Json, *, lenient: bool) -> Json:
    if isinstance(value, str):
        return check_text(value, lenient=lenient)
    if isinstance(value, dict):
        return {
            check_text(key, lenient=lenient): _without_surrogates(item, lenient=lenient) for key, item in value.items()
        }
    if isinstance(value, list):
        return [_without_surrogates(item, lenient=lenient) for item in value]
    return value


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)
_LENIENT = json.JSONDecoder(object_pairs_hook=dict, parse_constant=_no_constant, parse_float=_finite, strict=False)
