"""Volcengine's signature, version 4, for requests with a JSON body. Sans-IO; the vendor's own signer is the oracle."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import quote

from attrs import field, frozen

from agentkit.errors import ConfigError

SERVICE = "vefaas"


@frozen
class Credentials:
    """Who asks. Neither secret is ever shown."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)

    @classmethod
    def found(cls, environ: Mapping[str, str] | None = None) -> "Credentials":
        """Those of the environment, by the names of Volcengine's SDK.

        Raises:
            ConfigError: there are none.
        """
        env = os.environ if environ is None else environ
        access, secret = env.get("VOLCENGINE_ACCESS_KEY"), env.get("VOLCENGINE_SECRET_KEY")
        if not access or not secret:
            raise ConfigError("veFaaS has no credentials here: set VOLCENGINE_ACCESS_KEY and VOLCENGINE_SECRET_KEY")
        return cls(access, secret, env.get("VOLCENGINE_SESSION_TOKEN", ""))


def signed(
    body: bytes,
    *,
    host: str,
    query: Mapping[str, str],
    region: str,
    credentials: Credentials,
    now: datetime | None = None,
) -> dict[str, str]:
    """The headers of a signed POST to `/` on `host` (with its port, where that is neither 80 nor 443)."""
    date = (now or datetime.now(UTC)).strftime("%Y%m%dT%H%M%SZ")
    digest = hashlib.sha256(body).hexdigest()
    headers = {"Content-Type": "application/json", "Host": host, "X-Content-Sha256": digest, "X-Date": date}
    if credentials.session_token:
        headers["X-Security-Token"] = credentials.session_token
    lowered = sorted((name.lower(), value) for name, value in headers.items())
    names = ";".join(name for name, _ in lowered)
    request = "\n".join(
        (
            "POST",
            "/",
            "&".join(f"{name}={value}" for name, value in sorted((_quoted(n), _quoted(v)) for n, v in query.items())),
            "".join(f"{name}:{value}\n" for name, value in lowered),
            names,
            digest,
        )
    )
    scope = "/".join((date[:8], region, SERVICE, "request"))
    text = "\n".join(("HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = credentials.secret_key.encode()
    for part in (date[:8], region, SERVICE, "request"):
        key = _mac(key, part)
    signature = _mac(key, text).hex()
    headers["Authorization"] = (
        f"HMAC-SHA256 Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    )
    return headers


def _mac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _quoted(text: str) -> str:
    return quote(text, safe="-_.~")
