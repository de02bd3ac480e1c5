"""Who may use a server. Tokens come from a file or the environment; none is ever logged, or in a message or a repr."""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from agentkit.errors import ConfigError

TOKEN_VARIABLE = "AGENTKIT_SANDBOX_TOKEN"
SHORTEST_TOKEN = 16


class Tokens:
    """The tokens a server takes; each is a client of its own, that sees nothing of the others'.

    Raises:
        ConfigError: one is too short to guard anything.
    """

    def __init__(self, tokens: Sequence[str]) -> None:
        for token in tokens:
            check_token(token, "token")
        self._digests = [_digest(token) for token in dict.fromkeys(tokens)]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def whose(self, header: str | None) -> str | None:
        """A name for the client with this Authorization header, or None where it is no client of ours.

        Takes as long for a wrong token as for a right one.
        """
        scheme, _, token = (header or "").partition(" ")
        offered = _digest(token.strip())
        found: str | None = None
        for digest in self._digests:
            if hmac.compare_digest(digest, offered) and scheme.lower() == "bearer":
                found = digest.hex()[:12]
        return found


def check_token(token: str, name: str) -> str:
    """`token`, which can be sent and is long enough.

    Raises:
        ConfigError: it is not; the message does not show it.
    """
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{name} must have at least {SHORTEST_TOKEN} printable ASCII letters, and no blanks")
    return token


def read_tokens(path: Path | str) -> list[str]:
    """The tokens of a file, one a line; lines that begin with # are comments.

    Raises:
        ConfigError: it cannot be read, others may read it, or there is none in it.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"token_file {str(path)!r} cannot be read: {type(error).__name__}") from None
    if mode & 0o077:
        raise ConfigError(f"token_file {str(path)!r} can be read by others: chmod 600 it")
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise ConfigError(f"token_file {str(path)!r} holds no token")
    return [check_token(token, f"a token of {str(path)!r}") for token in tokens]


def token_of(token: str | None, token_file: Path | str | None) -> str | None:
    """The token to use: the one given, the first one of a file, that of the environment, or none.

    Raises:
        ConfigError: it cannot be read or used.
    """
    if token is not None:
        return check_token(token, "token")
    if token_file is not None:
        return read_tokens(token_file)[0]
    found = os.environ.get(TOKEN_VARIABLE)
    return None if found is None else check_token(found, TOKEN_VARIABLE)


def is_loopback(host: str) -> bool:
    """Whether `host` can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
