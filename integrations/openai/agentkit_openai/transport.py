"""HTTP to one server: bounded connections, streamed events, plain errors. aiohttp, so asyncio only.

What a caller relies on: leaving a stream before its end, by any path, closes its connection, and that is how a server
learns to stop generating. No secret is in a message or a repr. No reply, however large or endless, is held in memory.
"""

import asyncio
import json
import resource
import time
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, urlsplit

import anyio

from agentkit.errors import ConfigError, InvariantError, ModelError
from agentkit.extras import require
from agentkit_openai.events import ERROR_BYTES, EventStream, read_bounded
from agentkit_openai.faults import fault_of_reply, plain
from agentkit_openai.retry import retry_after_s
from agentkit_openai.slots import Slots

if TYPE_CHECKING:
    import aiohttp

_REPLY_BYTES = 16 << 20
_READ_BYTES = 64 << 10
_SPARE_FILES = 128  # for everything else that the process has open
_KEEPALIVE_S = 4.0  # below uvicorn's 5 s: a connection that the server is about to close is not used again
_SHORTEST_SECRET = 6  # a shorter one would blot out words of messages, and guards nothing
_HEADER_SAFE = "!#$&'()*+,-./:;=?@[]_~|"


class Transport:
    """Connections to the server at `base_url`, which ends where its API begins: `http://host:8000/v1`.

    Open between `async with`. At most `max_connections` requests are under way at once; those that wait for one go in
    the order in which they came. Paths are relative to `base_url`; those that begin with a slash, to the server's root,
    without a final `/v1`.

    Raises:
        ConfigError: an argument cannot work; the message names it.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        max_connections: int = 1024,
        connect_s: float = 10.0,
    ) -> None:
        self._base_url = _checked_url(base_url)
        self._root_url = self._base_url.removesuffix("/v1")
        self._headers = _checked_headers(headers or {}, api_key)
        self._secrets = _secrets_of(headers or {}, api_key)
        if isinstance(cast("object", max_connections), bool) or max_connections < 1:
            raise ConfigError(f"max_connections must be >= 1, found {max_connections!r}")
        if not connect_s > 0:
            raise ConfigError(f"connect_s must be > 0, found {connect_s!r}")
        self._max_connections = max_connections
        self._connect_s = connect_s
        self._slots = Slots(max_connections)
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Transport({self._base_url!r})"

    @property
    def base_url(self) -> str:
        """Where the API begins, without a final slash."""
        return self._base_url

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not appear in a message: the key, and the values of `headers`."""
        return self._secrets

    @property
    def slots(self) -> Slots:
        """How many connections are free, and how many requests wait for one."""
        return self._slots

    async def __aenter__(self) -> Self:
        """Open the session.

        Raises:
            ConfigError: it is open already, the loop is not asyncio's, or the process may not open that many files.
            MissingExtraError: aiohttp is not installed.
        Cancellation: nothing is left open.
        """
        aiohttp = aiohttp_module()
        if self._session is not None:
            raise ConfigError(f"the connection to {self._base_url} is open already: enter a model once, then share it")
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "agentkit_openai works on aiohttp, which runs on asyncio: run the pool with "
                "anyio.run(main, backend='asyncio')"
            ) from None
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY and self._max_connections + _SPARE_FILES > files:
            raise ConfigError(
                f"max_connections is {self._max_connections}, but this process may have {files} files open: "
                f"raise the limit (ulimit -n) or pass max_connections={max(1, files - _SPARE_FILES)}"
            )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_s),  # names are looked up within it too
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=_READ_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close all connections.

        Cancellation: they are closed all the same.
        """
        session, self._session = self._session, None
        self._loop = None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    def stream(
        self,
        path: str,
        body: Sequence[bytes],
        *,
        headers: Mapping[str, str] | None = None,
        event_bytes: int = 4 << 20,
    ) -> EventStream:
        """The events with which the server answers a POST of `body`, the pieces of one JSON text, once entered.

        No event may be larger than `event_bytes`.
        """
        return EventStream(self, path, body, headers or {}, event_bytes)

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float = 60.0) -> dict[str, Any]:
        """The JSON object with which the server answers a POST of `body`.

        Raises:
            ContextOverflow: the server says that the prompt leaves no room.
            ModelError: no connection, a refusal, no answer within `timeout_s`, or something else than a JSON object.
        Cancellation: the connection is closed.
        """
        return await self._ask("POST", path, json.dumps(body, separators=(",", ":")).encode(), timeout_s)

    async def get(self, path: str, *, timeout_s: float = 60.0) -> dict[str, Any]:
        """The JSON object at `path`.

        Raises:
            ModelError: no connection, a refusal, no answer within `timeout_s`, or something else than a JSON object.
        Cancellation: the connection is closed.
        """
        return await self._ask("GET", path, None, timeout_s)

    async def _ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> dict[str, Any]:
        where = f"{method} {self.url(path)}"
        await self._slots.acquire()
        try:
            with anyio.fail_after(timeout_s):
                response = await self.open(method, path, None if body is None else (body,), {})
                try:
                    content = await read_bounded(response, _REPLY_BYTES, where=where)
                finally:
                    response.close()
        except TimeoutError:
            raise ModelError(f"{where}: no answer within {timeout_s:g} s", retryable=True) from None
        finally:
            self._slots.release()
        try:
            answer: object = json.loads(content)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            said = plain(content[:2000].decode("utf-8", "replace"), secrets=self._secrets)
            raise ModelError(f"{where}: expected a JSON object, found {said!r}")
        return cast("dict[str, Any]", answer)

    def url(self, path: str) -> str:
        """The address of `path`."""
        return self._root_url + path if path.startswith("/") else f"{self._base_url}/{path}"

    async def open(
        self, method: str, path: str, body: Sequence[bytes] | None, headers: Mapping[str, str]
    ) -> "aiohttp.ClientResponse":
        """A reply with status 200, its body still to be read; the caller holds a slot, and closes it.

        Raises:
            ContextOverflow: the server says that the prompt leaves no room.
            ModelError: no connection, or a refusal.
        Cancellation: the connection is closed.
        """
        session, url = self._session, self.url(path)
        if session is None:
            raise ConfigError(
                f"the connection to {self._base_url} is not open: use the model within `async with model:`"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise ConfigError(
                f"the connection to {self._base_url} was opened in another event loop: enter a model in the loop "
                "that uses it, each loop one of its own"
            )
        where = f"{method} {url}"
        try:
            response = await self._send(session, method, url, body, headers)
        except Exception as error:
            raise self.lost(error, where=where) from self.shown(error)
        if response.status == 200:
            packed = response.headers.get("Content-Encoding", "")
            if packed.lower() in ("", "identity"):
                return response
            response.close()
            said = plain(packed, secrets=self._secrets, limit=40)
            raise ModelError(
                f"{where}: the answer is packed as {said!r}, though that was not asked for: let no proxy before the "
                "server compress"
            )
        try:
            content = await read_bounded(response, ERROR_BYTES, where=where, cut=True)
        finally:
            response.close()
        raise fault_of_reply(
            response.status,
            content,
            where=where,
            retry_after_s=retry_after_s(response.headers.get("Retry-After"), now=time.time()),
            secrets=self._secrets,
        )

    async def _send(
        self,
        session: "aiohttp.ClientSession",
        method: str,
        url: str,
        body: Sequence[bytes] | None,
        headers: Mapping[str, str],
    ) -> "aiohttp.ClientResponse":
        """The head of the reply. A kept connection that the server was just closing gets one more try, at once."""
        aiohttp = aiohttp_module()
        for is_last in (False, True):
            data = None if body is None else pieces_payload(body)
            try:
                return await session.request(method, url, data=data, headers=headers, allow_redirects=False)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                if is_last or session.closed or isinstance(error, aiohttp.ClientConnectorError):
                    raise
            if "X-Request-Id" in headers:  # the first may have arrived all the same: no two have one name
                headers = {**headers, "X-Request-Id": headers["X-Request-Id"] + ".again"}
            await asyncio.sleep(0)  # for the loop to notice which other kept connections are closed
        raise InvariantError("the tries have no end")

    def without_secrets(self, error: ModelError) -> ModelError:
        """`error`, without what a server quoted of this client's secrets."""
        said = str(error)
        for secret in self._secrets:
            if secret in said:
                said = said.replace(secret, "***")
                error.args = (said,)
        return error

    def lost(self, error: Exception, *, where: str) -> Exception:
        """What a fault of the connection is for the caller; any other error is itself."""
        aiohttp = aiohttp_module()
        if not isinstance(error, aiohttp.ClientError | OSError | TimeoutError):
            return error
        said = plain(str(error), secrets=self._secrets)
        if isinstance(error, aiohttp.ClientConnectorCertificateError):  # trying again does not mend it
            return ConfigError(
                f"{where}: the server's certificate is not trusted: {said}; where its authority is your own, name the "
                "file of that authority in the environment variable SSL_CERT_FILE"
            )
        return ModelError(f"{where}: {type(error).__name__}: {said or 'the connection broke'}", retryable=True)

    def shown(self, error: BaseException) -> BaseException | None:
        """`error`, as the cause of another; None where a traceback of it would show a secret that a server quoted."""
        text = "".join(traceback.format_exception(error)) if self._secrets else ""
        return None if any(secret in text for secret in self._secrets) else error


def header_value(text: str) -> str:
    """`text` as the value of a header: anything but printable ASCII without spaces is percent-encoded."""
    return quote(text, safe=_HEADER_SAFE)[:512]


def aiohttp_module() -> ModuleType:
    """The module aiohttp.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require("aiohttp", extra="openai", purpose="a model behind an OpenAI-compatible server")


def _checked_url(base_url: str) -> str:
    value: object = base_url
    if not isinstance(value, str):
        raise ConfigError(f"base_url must be a text like 'http://127.0.0.1:8000/v1', found {type(value).__name__}")
    try:
        parts = urlsplit(base_url)
        _ = parts.port  # raises for one that is no number
        has_credentials = parts.username is not None or parts.password is not None
        host = parts.hostname
        _ = (host or "").encode("idna")  # raises for one with an empty or endless label
    except ValueError:
        raise ConfigError("base_url cannot be read as an address like 'http://127.0.0.1:8000/v1'") from None
    if has_credentials or parts.query or parts.fragment:  # not quoted: a secret may be in it
        raise ConfigError(
            "base_url holds a user, a password, a query or a fragment: pass secrets as api_key=... or headers=..."
        )
    if parts.scheme not in ("http", "https") or not host or any(c.isspace() for c in base_url):
        raise ConfigError(f"base_url must be like 'http://127.0.0.1:8000/v1', found {base_url!r}")
    return base_url.rstrip("/")


def _checked_headers(headers: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    checked = {
        "Content-Type": "application/json",
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "agentkit",
    }
    for name, value in headers.items():
        if any(c in f"{name}{value}" for c in "\r\n\0"):
            raise ConfigError(f"headers[{name!r}] holds a line break or a NUL")
        _set(checked, name, value)
    if api_key is not None:
        key: object = api_key
        if not isinstance(key, str) or not key or not key.isascii() or not key.isprintable() or " " in key:
            raise ConfigError("api_key must be a text of printable ASCII without spaces (its value is not shown)")
        _set(checked, "Authorization", f"Bearer {api_key}")
    return checked


def _set(headers: dict[str, str], name: str, value: str) -> None:
    """Put a header in the place of one whose name differs in case only: otherwise both would be sent."""
    for same in [each for each in headers if each.lower() == name.lower()]:
        del headers[same]
    headers[name] = value


def _secrets_of(headers: Mapping[str, str], api_key: str | None) -> tuple[str, ...]:
    """What servers must not get to quote, even encoded: whole values and what follows a scheme, the longest first."""
    plainly = {part for value in (api_key or "", *headers.values()) for part in (value, value.rpartition(" ")[2])}
    found = {form for part in plainly for form in (part, quote(part), quote(part, safe=""), json.dumps(part)[1:-1])}
    return tuple(sorted((part for part in found if len(part) >= _SHORTEST_SECRET), key=len, reverse=True))


def pieces_payload(pieces: Sequence[bytes]) -> Any:
    """A request body that is sent piece by piece, so that a long prompt is not copied for each request."""
    from agentkit_openai._payload import PiecesPayload  # a subclass of one of aiohttp's, which may be absent

    return PiecesPayload(pieces)
