"""What a server's refusal means: no room left in the context, worth another try, or a thing to mend."""

import json
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from agentkit.errors import ContextOverflow, ModelError

_LONGEST = 400
_RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_OVERFLOW_STATUS = frozenset({0, 400, 413, 422})  # 0: an error inside a stream that began well

# Where a server says so in a field, the field is believed; the wordings are for those that do not.
_OVERFLOW_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error", "string_above_max_length"})
_OVERFLOW_FIELDS = frozenset({"input_tokens", "input_text"})  # vLLM
_OVERFLOW_WORDS = re.compile(
    r"maximum context length"  # vLLM, OpenAI, SGLang
    r"|longer than the maximum model length"  # vLLM's token-in token-out path, the prompt alone
    r"|is longer than the maximum\s+model length"  # the same with the tokens to sample
    r"|max_tokens must be at least 1, got (?:0|-\d+)\b"  # vLLM, where the prompt fills the window to the last token
    r"|max_completion_tokens must be at least 1, got (?:0|-\d+)\b"
    r"|exceeds the available context size"  # llama.cpp
    r"|longer than the model's context length|exceeds the model's (?:maximum )?context length"  # SGLang
    r"|input length \(?\d+(?: tokens)?\)? exceeds the maximum allowed length"  # SGLang
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be"  # TGI
    r"|`?inputs`? must have less than \d+ tokens"  # TGI
    r"|(?:exceeds?|over|beyond|too long for) the (?:model's |available )?context (?:window|length|size)"
    r"|prompt is too long",
    re.IGNORECASE,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


class Refused(ModelError):
    """The server answered, and the answer is no. `retry_after_s` is its own wish, if it had one."""

    def __init__(
        self, message: str, *, retryable: bool = False, status: int = 0, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, retryable=retryable)
        self.status = status
        self.retry_after_s = retry_after_s


def plain(text: str, *, secrets: tuple[str, ...] = (), limit: int = _LONGEST) -> str:
    """Text from a server, fit for a message: one line, nothing unprintable, no secrets, cut to `limit` characters."""
    for secret in filter(None, secrets):  # some servers quote the key they refuse
        text = text.replace(secret, "***")
    text = _CONTROL.sub(" ", text[: 4 * limit]).strip()
    return text if len(text) <= limit else text[:limit] + "..."


def fault_of_reply(
    status: int,
    body: bytes,
    *,
    where: str,
    retry_after_s: float | None = None,
    secrets: tuple[str, ...] = (),
) -> ModelError:
    """The error that an HTTP reply other than 200 stands for. `where` names the request, as in `POST /v1/completions`.

    `body` may be anything: JSON of any server's shape, HTML of a proxy, nothing.
    """
    text = body.decode("utf-8", "replace")
    try:
        content: object = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    message, codes, field = _read(content)
    if not message:
        message = text
    return _fault(status, message, codes, field, where=where, retry_after_s=retry_after_s, secrets=secrets)


def fault_of_event(event: object, *, where: str, secrets: tuple[str, ...] = ()) -> ModelError | None:
    """The error that an event reports, if it does: servers that fail after their 200 say so in the stream."""
    if not isinstance(event, dict) or not event.get("error"):
        return None
    message, codes, field = _read(event)
    status = next((int(code) for code in codes if code.isascii() and code.isdigit() and len(code) == 3), 0)
    return _fault(status, message, codes, field, where=where, retry_after_s=None, secrets=secrets)


def _fault(
    status: int,
    message: str,
    codes: frozenset[str],
    field: str,
    *,
    where: str,
    retry_after_s: float | None,
    secrets: tuple[str, ...],
) -> ModelError:
    said = plain(message, secrets=secrets) or "no reason given"
    if status in _OVERFLOW_STATUS and (
        codes & _OVERFLOW_CODES or field in _OVERFLOW_FIELDS or _OVERFLOW_WORDS.search(message[:10_000])
    ):
        return ContextOverflow(f"{where}: {said}")
    head = f"{where}: {status} {_phrase(status)}: {said}" if status else f"{where}: the stream reports: {said}"
    if status in (401, 403):
        head += "; is api_key right?"
    if 300 <= status < 400:
        head += "; redirects are not followed: give the address it leads to as base_url"
    retryable = status in _RETRYABLE and "insufficient_quota" not in codes
    return Refused(head, retryable=retryable, status=status, retry_after_s=retry_after_s)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "(no standard status)"


def _read(content: object) -> tuple[str, frozenset[str], str]:
    """(message, codes and types, field) of an error in any shape seen: OpenAI's, vLLM's older flat one, FastAPI's."""
    if not isinstance(content, dict):
        return (content, frozenset(), "") if isinstance(content, str) else ("", frozenset(), "")
    outer = cast("Mapping[str, Any]", content)
    error = outer.get("error", outer)
    if isinstance(error, str):
        return error, frozenset(), ""
    if not isinstance(error, dict):
        return "", frozenset(), ""
    message = next((error[key] for key in ("message", "detail", "error") if error.get(key)), "")
    codes = frozenset(str(error[key]) for key in ("code", "type") if isinstance(error.get(key), str | int))
    field = error.get("param")
    return message if isinstance(message, str) else json.dumps(message), codes, field if isinstance(field, str) else ""
