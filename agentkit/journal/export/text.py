r"""Text and free-form values as any JSON reader, terminal and tokenizer can take them.

A lone surrogate, which is no character and which UTF-8 cannot hold, becomes U+FFFD in every format: Arrow refuses a
whole file for one of them, and no tokenizer takes it. Nothing else is lost: in JSON, characters that end lines in some
readers, steer terminals or reorder text are written as `\u` escapes, everything else as itself.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.journal.opaque import Opaque, pack

_SURROGATES = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)


def clean(text: str) -> str:
    """`text` with U+FFFD for every lone surrogate."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def to_json(tree: Any) -> str:
    """`tree` as JSON in one line, valid and printable whatever its texts hold; a number that is not finite is refused.

    Raises:
        ValueError: a number in it is not finite.
    """
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return _ESCAPED.sub(_escape, text)


def _escape(match: "re.Match[str]") -> str:
    code = ord(match.group())
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"\\u{code:04x}"


def tagged(value: object) -> Any:
    """A free-form value (task data, metadata) as JSON, what JSON lacks tagged by an object with one key.

    Those of the journal (`$tuple`, `$bytes`, `$int`, `$map`, `$opaque`), and `{"$float": "nan"}`, `"inf"`, `"-inf"`.
    """
    return _finite(pack(value))


def numbers(values: Sequence[float]) -> "list[Any]":
    """`values` as JSON: those that are not finite tagged as by `tagged`."""
    return [value if math.isfinite(value) else {"$float": str(value)} for value in values]


def _finite(packed: Any) -> Any:
    if isinstance(packed, float) and not math.isfinite(packed):
        return {"$float": str(packed)}
    if isinstance(packed, list):
        return [_finite(item) for item in packed]
    return {key: _finite(item) for key, item in packed.items()} if isinstance(packed, dict) else packed


def arguments_of(value: Mapping[str, object]) -> dict[str, Any]:
    """The arguments of a call as plain JSON: sequences become lists, what JSON lacks its text."""
    return {str(key): _plain(item, 0) for key, item in value.items()}


def _plain(value: object, depth: int) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return (
            value if abs(value) < 1 << 64 else hex(value)
        )  # Python itself refuses decimal text of thousands of digits
    if isinstance(value, Opaque):
        return value.text if value.plain is None else value.plain
    if depth < 64 and isinstance(value, Mapping):
        return {str(key): _plain(item, depth + 1) for key, item in value.items()}
    if depth < 64 and isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(item, depth + 1) for item in value]
    return repr(value)
