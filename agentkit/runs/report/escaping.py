"""Text of a run made safe to show: what policies and envs wrote must neither become markup nor hide what it is."""

import html
import unicodedata

_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    r"""`text` in one line, with every character that is not plainly visible as `\x..`, `\u....`, `\n` or `\t`.

    `agentkit inspect` shows names in this form, and takes them in it.
    """
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    if character == "\n":
        return "\\n"
    if character == "\t":
        return "\\t"
    if unicodedata.category(character) not in _UNSAFE:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def markup(text: str, *, limit: int | None = None) -> str:
    """`text` for an HTML or SVG element or attribute: visible, escaped, and cut to `limit` characters if given."""
    shown = visible(text)
    if limit is not None and len(shown) > limit:
        shown = shown[: limit - 1] + "…"
    return html.escape(shown, quote=True)
