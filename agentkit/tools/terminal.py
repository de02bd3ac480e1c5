"""Terminal output as the text a policy should read: no escape sequences, no overprinting, no control characters."""

import re

# Every alternative consumes what it starts with, and no body may contain ESC, so that one pass is linear in the text.
# An introducer that nothing terminates goes alone: it must not hide the rest of the output.
_SEQUENCE = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor, erase
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    "|\x1b[\\]PX^_\\[]"
    "|\x1b[ -/]{1,8}[0-~]"  # charset and other two-part escapes
    "|\x1b[0-~]?"
)
_OTHER_CONTROLS = re.compile("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def plain_text(output: bytes) -> str:
    """The text of `output`: U+FFFD for bytes that are no UTF-8, newlines and tabs the only control characters.

    Of a line that was overwritten with carriage returns, as progress bars do, the last writing is kept; a backspace
    takes the character before it away.
    """
    text = _SEQUENCE.sub("", output.decode("utf-8", "replace"))
    text = _OTHER_CONTROLS.sub("", text)
    if "\r" in text or "\b" in text:
        text = "\n".join(_settled(line) for line in text.split("\n"))
    return text


def _settled(line: str) -> str:
    written = [part for part in line.split("\r") if part]
    last = written[-1] if written else ""
    if "\b" not in last:
        return last
    kept: list[str] = []
    for character in last:
        if character != "\b":
            kept.append(character)
        elif kept:
            kept.pop()
    return "".join(kept)


def clip(head: str, tail: str, *, left_out: int, head_chars: int, tail_chars: int) -> tuple[str, int]:
    """`head` and `tail` within the budget, the number of bytes left out noted between them, and that number.

    `left_out` bytes are missing between the two already; with 0, `head + tail` is all there was.
    """
    whole = head + tail
    if left_out == 0:
        if len(whole) <= head_chars + tail_chars:
            return whole, 0
        first, cut, last = _split(whole, head_chars, tail_chars)
        left_out = _size(cut)
    else:
        first, last = head[:head_chars], tail[max(0, len(tail) - tail_chars) :]
        left_out += _size(head[head_chars:]) + _size(tail[: max(0, len(tail) - tail_chars)])
    return f"{first}\n[... {left_out} bytes of output left out ...]\n{last}", left_out


def _split(text: str, head_chars: int, tail_chars: int) -> tuple[str, str, str]:
    stop = len(text) - tail_chars
    return text[:head_chars], text[head_chars:stop], text[stop:]


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
