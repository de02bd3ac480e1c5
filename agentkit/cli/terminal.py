"""Text for a terminal: hostile characters made visible, widths, colours.

Records hold what policies and environments wrote. An escape sequence in it could rewrite the screen, the window's title
or the clipboard, and a bidi override could make a command read as another: nothing of the sort reaches the terminal.
"""

import unicodedata
from collections.abc import Iterator
from enum import StrEnum

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


class Style(StrEnum):
    """How a piece of text is meant; the value is its SGR code."""

    SAMPLED = "32"
    FAULT = "31"
    DIM = "2"
    TITLE = "1"
    PLAIN = ""


def escape(text: str, *, lines: bool = False) -> str:
    r"""`text` with every character that is not plainly visible as `\x..` or `\u....`; with `lines`, newlines stay."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escape(character, lines=lines) for character in text)


def _escape(character: str, *, lines: bool) -> str:
    if character == "\n":
        return character if lines else "\\n"
    if character == "\t":
        return "    " if lines else "\\t"
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def columns(text: str) -> int:
    """How many columns escaped text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in {"Mn", "Me"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


def wrap(text: str, width: int | None) -> Iterator[str]:
    """The lines of escaped `text`, none wider than `width` (at least 8) columns."""
    for line in text.split("\n"):
        if width is None or columns(line) <= width:
            yield line
            continue
        piece, used = "", 0
        for character in line:
            wide = _columns(character)
            if used + wide > max(width, 8):
                yield piece
                piece, used = "", 0
            piece, used = piece + character, used + wide
        yield piece


def fit(text: str, width: int | None) -> str:
    """Escaped `text` in at most `width` columns, cut with an ellipsis."""
    if width is None or columns(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _columns(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…"


def paint(text: str, style: Style, *, color: bool) -> str:
    """`text` in its style, where there is colour."""
    return f"\x1b[{style.value}m{text}\x1b[0m" if color and style.value and text else text
