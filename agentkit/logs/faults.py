"""What is kept of an exception: its traceback as text, bounded and without secrets."""

import re
import traceback

from agentkit.logs.redaction import redact

_LIMIT = 64_000
_READ = 128_000  # more is not even looked at: what follows runs on the event loop
_WHITE = re.compile(r"\s")


def error_text(error: BaseException) -> str:
    """The traceback of `error` with its message, redacted, at most about 64,000 characters: its start and its end."""
    return cut_middle(redact(cut_middle("".join(traceback.format_exception(error)), _READ)), _LIMIT)


def cut_middle(text: str, limit: int) -> str:
    """`text`, or its first quarter and its last part where it is longer than `limit` characters, cut at white space.

    Nothing that holds no white space is shown in part, so that half a secret is not left where no pattern knows it.
    """
    if len(text) <= limit:
        return text
    head, tail = limit // 4, len(text) - (limit - limit // 4)
    while head and not text[head - 1].isspace():
        head -= 1
    found = _WHITE.search(text, tail)
    tail = len(text) if found is None else found.end()
    return f"{text[:head]}[... {tail - head} characters cut ...]\n{text[tail:]}"
