"""Secrets in text, by the forms they are known by: a pure function, linear in the text, whoever wrote it.

What it looks for can be told from ordinary text: keys with a vendor's prefix, tokens in three base64 parts, PEM blocks,
credentials in URLs, header values, and values whose name says that they are secret. A secret without any such form is
for `Redactor`, which is told the values. Where a form is doubtful (`token = ...`), a value is hidden only if it looks
random, so that code, digests, UUIDs and encoded images stay as they are.

No pattern can be made to look at a character more than a bounded number of times: each repetition is bounded, or runs
over characters that no other part of its pattern takes, and starts where the one before it cannot have started.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache

MASK = "[redacted]"
"""What stands in the place of a secret."""


def redact(text: str) -> str:
    """`text` with every secret that can be told by its form replaced by `[redacted]`; all else stays as it is."""
    if "PRIVATE KEY" in text:
        text = _without_private_keys(text)
    if "://" in text:
        text = _URL().sub(_url, text)
    lowered = text.lower()
    if "?" in text or "&" in text:
        text = _QUERY().sub(rf"\1{MASK}", text)
    if any(word in lowered for word in ("authorization", "cookie", "bearer", "basic ")):
        text = _HEADER().sub(_header, text)
        text = _SCHEME().sub(_scheme, text)
    text = _PREFIXED().sub(_prefixed, text)
    if any(word in lowered for word in _NAME_WORDS):
        text = _VARIABLE().sub(_variable, text)
        text = _FLAG().sub(rf"\g<flag>{MASK}", text)
        text = "".join(_without_named_values(text))
    return text


def _lazily(pattern: str, flags: int = 0) -> "Callable[[], re.Pattern[str]]":
    """The compiled pattern, when it is first asked for: compiling all of them takes longer than other imports do."""
    return cache(lambda: re.compile(pattern, flags))


# Keys with a prefix of their own. The prefix starts a word, or follows an escape (`\n` in a repr, `%3D` in a URL).


def _after_prefix(prefix: str, body: str) -> str:
    start = rf"(?:(?<![A-Za-z0-9_-]{prefix})|(?<=\\[nrt]{prefix})|(?<=%[0-9A-Fa-f][0-9A-Fa-f]{prefix}))"
    return prefix + start + body


_PREFIXED = _lazily(
    "|".join(
        [
            _after_prefix("sk-", r"[A-Za-z0-9_-]{12,}"),  # OpenAI, Anthropic, and whoever copied them
            _after_prefix("hf_", r"[A-Za-z0-9]{16,}"),
            _after_prefix("gh[pousr]_", r"[A-Za-z0-9]{16,}"),
            _after_prefix("github_pat_", r"[A-Za-z0-9_]{16,}"),
            _after_prefix("glpat-", r"[A-Za-z0-9_-]{16,}"),
            _after_prefix("A[KS]IA", r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
            _after_prefix("xox[a-z]-", r"[A-Za-z0-9-]{10,}"),
            _after_prefix("xapp-", r"[A-Za-z0-9-]{10,}"),
            _after_prefix("AIza", r"[A-Za-z0-9_-]{30,}"),
            _after_prefix("ya29\\.", r"[A-Za-z0-9_-]{16,}"),
            _after_prefix("[rs]k_live_", r"[A-Za-z0-9]{10,}"),
            _after_prefix("[rs]k_test_", r"[A-Za-z0-9]{10,}"),
            _after_prefix("nvapi-", r"[A-Za-z0-9_-]{16,}"),
            _after_prefix("gsk_", r"[A-Za-z0-9]{16,}"),
            _after_prefix("npm_", r"[A-Za-z0-9]{30,}"),
            _after_prefix("pypi-", r"[A-Za-z0-9_-]{40,}"),
            _after_prefix("eyJ", r"[A-Za-z0-9_-]{6,}\.[A-Za-z0-9_-]{6,}(?:\.[A-Za-z0-9_-]*){1,3}"),
        ]
    )
)


def _prefixed(match: "re.Match[str]") -> str:
    found = match[0]
    if not any(map(str.isdigit, found)) and len(found) < 28:  # a name such as sk-learn-extensions
        return found
    return MASK


# PEM blocks


_PEM = _lazily(r"-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_PEM_BODY = _lazily(r"(?:[A-Za-z0-9+/=]|\s|\\[nr]){0,20000}")


def _without_private_keys(text: str) -> str:
    kept: list[str] = []
    at = 0
    opened: list[re.Match[str]] = []
    for mark in _PEM().finditer(text):
        if mark[1] == "END":
            start = opened[0].start() if opened else at
            if not opened:  # its beginning was cut off: what precedes it may be key
                lines = text[max(at, mark.start() - 20_000) : mark.start()]
                start = mark.start() - len(lines) + _last_text(lines)
            kept += [text[at:start], MASK]
            at = mark.end()
            opened.clear()
        else:
            opened.append(mark)
    for mark in opened:  # their ends were cut off
        kept += [text[at : mark.start()], MASK]
        body = _PEM_BODY().match(text, mark.end())
        at = mark.end() if body is None else body.end()
    kept.append(text[at:])
    return "".join(kept)


def _last_text(text: str) -> int:
    """Where the base64 at the end of `text` begins."""
    last = 0
    for line in re.finditer(r"[^\n]*\n?", text):
        words = line[0].strip().strip("\\nr")
        if words and (len(words) < 16 or not re.fullmatch(r"(?:[A-Za-z0-9+/=]|\\[nr])+", words)):
            last = line.end()
    return last


# Credentials in URLs


_URL = _lazily(r"://([^\s/?#@:\"'<>\\]{0,256})(?::([^\s/?#\"'<>\\]{0,512}))?@")


def _url(match: "re.Match[str]") -> str:
    user, password = match[1], match[2]
    if password is None:
        return f"://{MASK}@" if len(user) >= 20 else match[0]
    if len(user) >= 20:  # a token as the user's name
        user = MASK
    return f"://{user}:{MASK}@" if password else f"://{user}:@"


_QUERY = _lazily(
    r"([?&;](?:key|sig|signature|x-(?:amz|goog)-(?:signature|credential|security-token))=)[^&\s\"'<>#\\\[]{6,2048}",
    re.IGNORECASE,
)

# Headers, in a message as it is sent, and as dictionaries, tuples and multidicts of them are printed


_HEADER = _lazily(
    r"(?P<head>(?:authorization|cookie)(?:\\{0,4}[\"'])?\s{0,4}[:=,](?!=)\s{0,4}(?:b?\\{0,4}[\"'])?)"
    r"(?P<value>(?:(?:[A-Za-z][A-Za-z0-9-]{1,24}) )?[^\s\"'\\)}>\]][^\r\n\"'\\)}>\]]{0,4096}"
    # and quoted values in it, as cookies and Digest have: not the end of a value that ends in =
    r"(?:(?<==)(?:\"[A-Za-z0-9][^\"\s\\]{0,1024}\"|'[A-Za-z0-9][^'\s\\]{0,1024}')[^\r\n\"'\\)}>\]]{0,1024}){0,32})",
    re.IGNORECASE,
)
_MASKED = MASK[:-1]  # what is left of it in a value that ends before a bracket
_SCHEMES = frozenset({"bearer", "basic", "token", "digest", "negotiate", "apikey", "aws4-hmac-sha256", "hawk"})


def _header(match: "re.Match[str]") -> str:
    head, value = match["head"], match["value"]
    if value.startswith(_MASKED):
        return match[0]
    first, _, rest = value.partition(" ")
    if first.lower() in _SCHEMES and rest:
        return match[0] if rest.startswith(_MASKED) else f"{head}{first} {MASK}"
    quoted = head.endswith(('"', "'"))
    if "cookie" in head.lower():
        return head + MASK if "=" in value.partition(";")[0] or quoted else match[0]
    if quoted or (len(first) >= 8 and any(map(str.isdigit, first))):
        return head + MASK + ("" if quoted else value[len(first) :])
    return match[0]


_SCHEME = _lazily(
    r"(?:\b|(?<=%20)|(?<=%3[aA]))(Bearer|Basic)([ \t]{1,4}|%20|\+)([A-Za-z0-9._~+/-]{8,4096}={0,2})", re.IGNORECASE
)


def _scheme(match: "re.Match[str]") -> str:
    value = match[3]
    if any(map(str.isdigit, value)) or value.endswith("=") or len(value) >= 20:
        return f"{match[1]}{match[2]}{MASK}"
    return match[0]


# Values whose name says that they are secret: `api_key=...`, `"password": "..."`, `--token ...`


_NAME_WORDS = ("key", "secret", "pass", "pwd", "token", "auth", "credential")
_CERTAIN = (
    r"api[_-]?key|secret[_-]?(?:access[_-]?)?key|access[_-]?key|private[_-]?key"
    r"|(?:account|subscription|signing|encryption)[_-]?key"
    r"|client[_-]?secret|secret|passwd|password|passphrase|pwd"
)
_NAMED = _lazily(
    rf"(?P<name>{_CERTAIN}|token|credentials?|auth|pass)\d{{0,2}}"
    r"(?P<separator>(?:\\{0,4}[\"'])?\]?\s{0,8}(?:=>|:=|[:=]|%3[aAdD])\s{0,8}|\\{0,4}[\"'],\s{0,4}(?=b?\\{0,4}[\"']))"
    r"(?P<value>[bru]{0,2}\"(?:[^\"\\\n]|\\.){0,8192}\"?|[bru]{0,2}'(?:[^'\\\n]|\\.){0,8192}'?"
    r"|\\{1,6}[\"'][^\"'\n]{0,8192}[\"']?|[^\s\"'<>,;&(){}\[\]|=\\%]{1,256}(?:%[0-9A-Fa-f]{2}[^\s\"'<>,;&(){}\[\]|=\\%]{0,64}){0,64}={0,2})",
    re.IGNORECASE,
)
_FLAG = _lazily(
    r"(?P<flag>--?(?:[a-z]{1,12}-){0,3}(?:api-?key|password|passwd|secret|(?:auth|access|hf|api)-token|token)"
    r"(?:\s{1,4}|[\"'],\s{0,4}[\"']))(?![-\[])[^\s\"'\\,]{6,1024}"
)
# A line of an environment: its value goes on to the end of the line, whatever is in it.
_VARIABLE = _lazily(
    r"^(?P<head>(?:export[ \t]{1,4})?(?:[A-Z0-9]{1,32}_){0,6}"
    r"(?:[A-Z0-9]{0,32}PASSWORD|PASSWD|SECRET|(?:API|ACCESS|SECRET|PRIVATE)_?KEY)=)(?P<value>[^\s\"'$]\S{0,1024})$",
    re.MULTILINE,
)
_CERTAINLY = _lazily(_CERTAIN, re.IGNORECASE)
_TELLING = _lazily(r"(?:access|refresh|auth|session|id|api|bearer|csrf|xsrf|hf|hub|lab|bot|security|wandb)[_-]?$")
_CODE = _lazily(r"(?:self|cls|os|args|config|cfg|settings|options|env|environ|ctx|kwargs|request)\.[A-Za-z_]")
_WORDS = frozenset(
    {"none", "null", "true", "false", "str", "bytes", "int", "bool", "optional", "any", "string", "object", "union"}
)


def _variable(match: "re.Match[str]") -> str:
    return match[0] if _CODE().match(match["value"]) or match["value"] == MASK else match["head"] + MASK


def _without_named_values(text: str) -> Iterator[str]:
    done = at = 0
    while match := _NAMED().search(text, at):
        start, end = match.span("value")
        opening, value, closing = _unquoted(match["value"])
        if _is_secret(text, match, value, quoted=bool(opening), end=end):
            yield text[done:start]
            yield opening + MASK + closing
            done = at = end
        else:
            at = start + len(opening)  # a value may hold further names
    yield text[done:]


def _unquoted(value: str) -> tuple[str, str, str]:
    opening = re.match(r"[bru]{0,2}\\{0,6}[\"']", value, re.IGNORECASE)
    if opening is None:
        return "", value, ""
    inner = value[opening.end() :]
    closing = re.search(r"\\{0,6}[\"']$", inner) if inner.endswith(("'", '"')) else None
    if closing is None:
        return opening[0], inner, ""
    return opening[0], inner[: closing.start()], closing[0]


def _is_secret(text: str, match: "re.Match[str]", value: str, *, quoted: bool, end: int) -> bool:
    if not value or value == MASK:
        return False
    name = match["name"].lower()
    before = text[max(0, match.start() - 16) : match.start()]
    certain = _CERTAINLY().fullmatch(name) is not None or (name == "pass" and before.endswith(("_", "-")))
    if not quoted and _is_code(text, value, name, end):
        return False
    if "," in match["separator"]:  # a pair, as lists of headers are printed, or two names
        return len(value) >= 8 and _is_mixed(value)
    if certain:
        return True
    if name == "token" and (_TELLING().search(before.lower()) or (before[-1:] == "_" and match["name"].isupper())):
        return len(value) >= 8 and _is_mixed(value)
    if name in {"pass", "credential", "credentials"}:
        return (quoted or _is_mixed(value)) and not before[-1:].isalnum()
    return len(value) >= 20 and _is_mixed(value) and re.fullmatch(r"[A-Za-z0-9_.~+/=%:-]+", value) is not None


def _is_code(text: str, value: str, name: str, end: int) -> bool:
    word = value.rstrip(".:").lower()
    follows = text[end : end + 1]
    if word in _WORDS or follows in {"(", "["} or _CODE().match(value):
        return True
    return word.replace("-", "_").endswith(name.replace("-", "_")) and value.isidentifier()


def _is_mixed(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))
