"""Secrets whose values are known, hidden however they were encoded on their way into a text."""

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, quote_plus

from attrs import field, frozen

from agentkit.logs.redaction import MASK, redact

_SHORTEST = 4  # a shorter value is part of ordinary words and numbers
_WORD = 8  # up to this length a value is hidden as a word of its own only
_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:api_?key|key|token|secret|passwd|password|passphrase|pwd|pass|credentials?|auth)\d*$", re.IGNORECASE
)


def environment_secrets(environ: Mapping[str, str]) -> frozenset[str]:
    """The values of those variables whose names say that they are secret (`OPENAI_API_KEY`, `HF_TOKEN`, ...)."""
    return frozenset(value for name, value in environ.items() if value and _SECRET_NAME.search(name))


def _known(secrets: Iterable[str]) -> frozenset[str]:
    if isinstance(secrets, str):
        secrets = (secrets,)
    return frozenset(secret for secret in secrets if len(secret) >= _SHORTEST and secret not in MASK)


@frozen
class Redactor:
    """Hides `secrets`, and what `redact` finds: a pure function of a text.

    A secret is found as it is, URL-encoded (an address within an address twice), in JSON or a repr, in hexadecimal, and
    in base64, wherever in the encoded text it stood (`Basic` credentials hold it behind a name). Values shorter than 4
    characters are not hidden, and those up to 8 only where they stand as a word. Neither the secrets nor their number
    are in its repr.
    """

    secrets: frozenset[str] = field(default=frozenset(), converter=_known, repr=False)
    _variants: tuple[str, ...] = field(init=False, repr=False, eq=False)
    _words: "re.Pattern[str] | None" = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        variants = {variant for secret in self.secrets for variant in _variants(secret)}
        words = {variant for variant in variants if len(variant) <= _WORD}
        longest_first = sorted(words, key=len, reverse=True)
        pattern = "|".join(map(re.escape, longest_first))
        compiled = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])") if words else None
        object.__setattr__(self, "_variants", tuple(sorted(variants - words, key=len, reverse=True)))
        object.__setattr__(self, "_words", compiled)

    def __call__(self, text: str) -> str:
        """`text` without its secrets."""
        for variant in self._variants:
            if variant in text:
                text = text.replace(variant, MASK)
        if self._words is not None:
            text = self._words.sub(MASK, text)
        return redact(text)

    def __reduce__(self) -> "tuple[object, ...]":
        return Redactor, (self.secrets,)


def _variants(secret: str) -> Iterator[str]:
    yield secret
    data = secret.encode("utf-8", "surrogatepass")
    once = quote(data, safe="")
    for encoded in (once, quote(data), quote_plus(data), quote(once), quote(quote(data)), quote_plus(quote_plus(data))):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)
    for escaped in (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]):
        yield escaped
        yield json.dumps(escaped)[1:-1]
    yield secret.replace("'", "\\'")
    yield ascii(data)[2:-1]
    if len(data) >= 6:
        yield data.hex()
        yield data.hex().upper()
        yield from _in_base64(data)


def _in_base64(data: bytes) -> Iterator[str]:
    """What base64 of any text that holds `data` holds, by where in a group of three bytes it begins."""
    for lead in range(3):
        encoded = base64.b64encode(bytes(lead) + data).decode()
        # Characters that also encode bytes before or after the secret are unknown.
        known = encoded[(0, 2, 3)[lead] : (lead + len(data)) * 8 // 6]
        if len(known) >= _WORD:
            yield known
            yield known.replace("+", "-").replace("/", "_")
