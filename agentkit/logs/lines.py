r"""What is logged, as lines: readable or JSON, one record each, and nothing in it that could forge another.

A record holds what models, servers and environments said. Control characters are shown as escapes, so that a terminal
does not obey them; a newline within a message is `\n`, and the lines of a traceback or of a long text are set in.
"""

import json
import re
import time
from collections.abc import Callable, Mapping

from attrs import field, frozen

from agentkit.logs.context import rollout_name
from agentkit.protocols import RolloutKey

_ODD = re.compile(r"[^ -~]")
_SECRET_FIELD = re.compile(
    r"(?:api_?key|token|secret|passw(?:or)?d|passphrase|authorization|cookie|credentials?)$", re.IGNORECASE
)
_DEPTH = 4
_ITEMS = 50

Redact = Callable[[str], str]


@frozen
class Entry:
    """A log record, with its texts made: nothing in it refers to the code that logged it. `created` is a Unix time."""

    created: float
    level: int
    level_name: str
    logger: str
    message: str
    rollout: RolloutKey | None = None
    run: str | None = None
    fault: str | None = None
    fields: Mapping[str, object] = field(factory=dict)
    thread: str | None = None


def escape(text: str) -> str:
    r"""`text` in one line, with every character that is not plainly visible as `\n`, `\x..` or `\u....`."""
    return _ODD.sub(_escaped, text) if not (text.isascii() and text.isprintable()) else text


def _escaped(match: "re.Match[str]") -> str:
    character = match[0]
    if character.isprintable():
        return character
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    code = ord(character)
    return named or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def readable(entry: Entry, redact: Redact) -> str:
    """The line of an entry, those of its traceback set in after it."""
    moment, milliseconds = time.localtime(entry.created), int(entry.created * 1000) % 1000
    names = [] if entry.run is None else [escape(redact(entry.run))]
    names += [] if entry.rollout is None else [escape(redact(rollout_name(entry.rollout)))]
    where = f" [{' '.join(names)}]" if names else ""
    head = f"{time.strftime('%Y-%m-%d %H:%M:%S', moment)}.{milliseconds:03d} {escape(entry.level_name):<7}"
    line = f"{head} {escape(redact(entry.logger))}{where} {escape(redact(entry.message))}\n"
    return line + ("" if entry.fault is None else _set_in(redact(entry.fault)))


def json_line(entry: Entry, redact: Redact) -> str:
    """The entry as one JSON object in one line: ASCII, control characters as JSON escapes them."""
    record: dict[str, object] = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(entry.created))
        + f".{int(entry.created * 1000) % 1000:03d}Z",
        "level": entry.level_name,
        "logger": redact(entry.logger),
        "message": redact(entry.message),
    }
    if entry.run is not None:
        record["run"] = redact(entry.run)
    if entry.rollout is not None:
        record["rollout"] = redact(rollout_name(entry.rollout))
    if entry.thread is not None:
        record["thread"] = redact(entry.thread)
    if entry.fault is not None:
        record["exception"] = redact(entry.fault)
    for name, value in entry.fields.items():
        record.setdefault(redact(name), _plain(name, value, redact, _DEPTH))
    return json.dumps(record) + "\n"


def told(entry: Entry, redact: Redact, *, cut: int) -> str:
    """The entry as part of the file of its rollout: long texts cut to `cut` characters, their lines set in."""
    moment, milliseconds = time.localtime(entry.created), int(entry.created * 1000) % 1000
    stamp = f"{time.strftime('%H:%M:%S', moment)}.{milliseconds:03d}"
    message = redact(entry.message)
    if len(message) > cut:
        message = f"{message[:cut]} [... {len(message) - cut} more characters]"
    first, newline, rest = message.partition("\n")
    origin = "" if entry.logger == TRANSCRIPT else f"{escape(entry.level_name)} {escape(redact(entry.logger))}: "
    text = f"{stamp} {origin}{escape(first)}\n"
    if newline:
        text += _set_in(rest)
    return text + ("" if entry.fault is None else _set_in(redact(entry.fault)))


TRANSCRIPT = "agentkit.transcript"
"""The logger that is told, at level DEBUG, what each rollout says and does."""

ROLLOUT_ENDED = "rollout_ended"
"""The extra field, a `RolloutKey`, of the last record of an attempt."""


def _set_in(text: str) -> str:
    return "".join(f"    | {escape(line)}\n" for line in text.rstrip("\n").split("\n"))


def _plain(name: str, value: object, redact: Redact, depth: int) -> object:
    """A JSON value for what was given as an extra field of a record."""
    if _SECRET_FIELD.search(name) and isinstance(value, str | bytes) and value:
        return "[redacted]"
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, str):
        return redact(value)
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:_ITEMS]
        return {redact(str(key)): _plain(str(key), inner, redact, depth - 1) for key, inner in items}
    if depth and isinstance(value, list | tuple):
        return [_plain("", inner, redact, depth - 1) for inner in value[:_ITEMS]]
    return redact(str(value))
