"""`${NAME}` in the texts of a configuration, and which values are secret.

`${NAME}` is the variable's value, `${NAME:-text}` the text where it is unset or empty, `$$` one dollar; any other
dollar is itself. What came from a variable is a secret, and so is a text written under a key such as
`api_key` or `password`.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from attrs import frozen

from agentkit.logs import redact
from agentkit.runs.config.problems import Path, Problem

SHORTEST_SECRET = 6
"""Shorter values are not hidden: they would take every second word out of a log, and guard nothing."""

WRITTEN = "***"
"""What stands for a secret that is written out in the file."""

_DOLLAR = re.compile(r"\$(?:(\$)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}$]*))?\}|(\{))")
_SECRET_KEY = re.compile(
    r"(?:api_?key|access_?key|private_?key|token|passwd|password|secret|authorization|credentials?)$", re.IGNORECASE
)


class Expanded(str):
    """A text in which variables were replaced; `written` is how it stands in the file."""

    written: str


@frozen
class Expansion:
    """A tree with its variables replaced, the secrets in it by what stands for them, and what could not be replaced."""

    tree: dict[str, object]
    secrets: Mapping[str, str]
    problems: tuple[Problem, ...]

    def hide(self, text: str) -> str:
        """`text` with every secret replaced."""
        return hide_in(text, self.secrets)


def expand(tree: Mapping[str, object], environ: Mapping[str, str]) -> Expansion:
    """`tree` with `${NAME}` replaced in every text that is a value; keys stay as they are."""
    secrets: dict[str, str] = {}
    problems: list[Problem] = []

    def text(path: Path, value: str) -> str:
        if "$" not in value:
            if is_secret_key(path) and len(value) >= SHORTEST_SECRET:
                secrets.setdefault(value, WRITTEN)
            return value
        replaced = _DOLLAR.sub(lambda found: _replacement(found, path, environ, secrets, problems), value)
        result = Expanded(replaced)
        result.written = value
        return result

    expanded = {key: _map_texts(value, (key,), text) for key, value in tree.items()}
    return Expansion(expanded, secrets, tuple(problems))


def mask_written_secrets(tree: Mapping[str, object]) -> dict[str, object]:
    """`tree` with texts under keys such as `api_key` replaced by `***`, unless they are made of variables.

    In other texts that are written out, what can be told by its form (a password in a URL) is masked.
    """

    def text(path: Path, value: str) -> str:
        written = is_secret_key(path) and _DOLLAR.sub(lambda found: found[3] or "", value)
        if written:
            return WRITTEN
        return value if "$" in value else redact(value)

    return {key: _map_texts(value, (key,), text) for key, value in tree.items()}


def is_secret_key(path: Path) -> bool:
    """Whether the name at the end of `path` says that its value is secret."""
    names = [step for step in path if isinstance(step, str)]
    return bool(names) and _SECRET_KEY.search(names[-1]) is not None


def hide_in(text: str, secrets: Mapping[str, str]) -> str:
    """`text` with every secret replaced by what stands for it, the longest first."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, secrets[secret])
        quoted = repr(secret)[1:-1]
        if quoted != secret:
            text = text.replace(quoted, secrets[secret])
    return text


def plain(value: object) -> object:
    """`value` with plain texts only: nothing that is passed on remembers how it was written."""
    if isinstance(value, Expanded):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def texts(value: object) -> Iterator[str]:
    """All texts in `value`, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


def _replacement(
    found: re.Match[str],
    path: Path,
    environ: Mapping[str, str],
    secrets: dict[str, str],
    problems: list[Problem],
) -> str:
    dollar, name, default, broken = found.groups()
    if dollar:
        return "$"
    if broken:
        problems.append(
            Problem(path, "has a `${` that names no variable: write ${NAME}, ${NAME:-text}, or $${ for itself")
        )
        return found.group()
    value = environ.get(name)
    if value or (value is not None and default is None):
        if len(value) >= SHORTEST_SECRET:
            secrets[value] = f"${{{name}}}"
        return value
    if default is None:
        problems.append(Problem(path, f"needs the environment variable {name}, which is not set"))
        return found.group()
    return default


def _map_texts(value: object, path: Path, change: Callable[[Path, str], str]) -> object:
    if isinstance(value, str):
        return change(path, value)
    if isinstance(value, Mapping):
        return {key: _map_texts(item, (*path, key), change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(item, (*path, index), change) for index, item in enumerate(value)]
    return value
