"""The server: any back end of this machine, for clients elsewhere. aiohttp, so asyncio only."""

import asyncio
import logging
import re
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import anyio

from agentkit.errors import ConfigError
from agentkit.extras import require
from agentkit.protocols.sandbox import Capable, SandboxBackend
from agentkit.protocols.sandbox_spec import Capabilities
from agentkit_remote.auth import Tokens, is_loopback, read_tokens
from agentkit_remote.frames import MESSAGE_BYTES, SUBPROTOCOL, VERSION, WireError
from agentkit_remote.messages import Fields, capabilities_to_json
from agentkit_remote.peer import greet, greeting
from agentkit_remote.policy import ServerPolicy
from agentkit_remote.session import Places, Session

if TYPE_CHECKING:
    from aiohttp.web import AppRunner, Request, Response, StreamResponse, WebSocketResponse

LOG = logging.getLogger("agentkit.sandbox.remote")
HELLO_S = 10.0
_SESSION = re.compile(r"[0-9a-f]{32}\Z")
_UNKNOWN = Capabilities(isolated=False)


class SandboxServer:
    """Serves the sandboxes of `backend` at `url`, between `async with`; when left, all of them are closed.

    Clients show one of `tokens`, or of those in `token_file` (one a line, mode 600), and see what was started with the
    same token only. Without any token nobody is served, unless `anonymous` allows that on a loopback address. With
    `tls_cert` and `tls_key`, PEM files, it speaks TLS. `port` 0 takes a free one.

    Raises:
        ConfigError: it would listen to strangers, or an argument cannot work.
    """

    def __init__(
        self,
        backend: SandboxBackend,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: Sequence[str] = (),
        token_file: Path | str | None = None,
        anonymous: bool = False,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        policy: ServerPolicy = ServerPolicy(),  # noqa: B008  # frozen
    ) -> None:
        if isinstance(tokens, str):
            raise ConfigError("tokens must be a sequence of tokens, found a text")
        self._tokens = Tokens([*tokens, *(read_tokens(token_file) if token_file else ())])
        if not self._tokens and not is_loopback(host):
            raise ConfigError(f"host {host!r} can be reached from other machines: a token is needed (token_file)")
        if not self._tokens and not anonymous:
            raise ConfigError(
                "no token to recognise clients by: give token_file (--token-file), "
                "or allow anyone on this machine (--anonymous)"
            )
        if (tls_cert is None) is not (tls_key is None):
            raise ConfigError("tls_cert and tls_key go together")
        self._tls = None if tls_cert is None or tls_key is None else _tls(tls_cert, tls_key)
        if self._tokens and self._tls is None and not is_loopback(host):
            LOG.warning("tokens and output cross the network unencrypted: give tls_cert and tls_key, or use a tunnel")
        self._backend = backend
        self._host = host
        self._port = port
        self._policy = policy
        self._places = Places(policy.max_sandboxes)
        self._sessions: dict[tuple[str, str], Session] = {}
        self._runner: AppRunner | None = None
        self._is_closing = False
        self.url = ""

    def __repr__(self) -> str:
        return f"SandboxServer({self.url or self._host!r})"

    @property
    def sandboxes(self) -> int:
        """How many there are, alive or being started."""
        return self._places.taken

    async def __aenter__(self) -> Self:
        """Listen.

        Raises:
            ConfigError: the address cannot be listened on, or the loop is not asyncio's.
            MissingExtraError: aiohttp is not installed.
        Cancellation: nothing is left open.
        """
        web = require("aiohttp.web", extra="remote", purpose="serving sandboxes")
        _require_asyncio("SandboxServer")
        self._is_closing = False
        application = web.Application(client_max_size=1024)
        application.router.add_get("/v1/connect", self._connect)
        application.router.add_delete("/v1/sessions/{session}", self._remove)
        runner: AppRunner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        self._runner = runner
        try:
            await runner.setup()
            await web.TCPSite(runner, self._host, self._port, ssl_context=self._tls, backlog=1024).start()
        except OSError as error:
            await runner.cleanup()
            raise ConfigError(f"host {self._host!r}, port {self._port}: {error.strerror or error}") from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
            raise
        port = runner.addresses[0][1]
        name = f"[{self._host}]" if ":" in self._host else self._host
        self.url = f"{'https' if self._tls else 'http'}://{name}:{port}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close all sandboxes and connections.

        Cancellation: they are closed all the same; some seconds at most.
        """
        with anyio.CancelScope(shield=True):
            self._is_closing = True
            await asyncio.gather(*(session.close() for session in list(self._sessions.values())))
            if self._runner is not None:
                await self._runner.cleanup()
                self._runner = None

    def _client(self, request: "Request") -> str:
        """Who asks. Browsers are turned away: a page could make its visitor's reach this machine."""
        web = require("aiohttp.web", extra="remote", purpose="serving sandboxes")
        if "Origin" in request.headers:
            raise web.HTTPForbidden(text="not for browsers\n")
        if not self._tokens:
            return ""
        client = self._tokens.whose(request.headers.get("Authorization"))
        if client is None:
            LOG.warning("a client at %s showed no token of ours", request.remote)
            raise web.HTTPUnauthorized(text="no token of this server\n")
        return client

    async def _connect(self, request: "Request") -> "StreamResponse":
        web = require("aiohttp.web", extra="remote", purpose="serving sandboxes")
        client = self._client(request)
        if SUBPROTOCOL not in request.headers.get("Sec-WebSocket-Protocol", ""):
            raise web.HTTPBadRequest(text=f"this server speaks {SUBPROTOCOL}\n")
        socket: WebSocketResponse = web.WebSocketResponse(
            protocols=[SUBPROTOCOL], compress=False, max_msg_size=MESSAGE_BYTES + 1, timeout=1.0
        )
        await socket.prepare(request)
        try:
            await self._talk(socket, client)
        except WireError as error:
            await socket.close(code=1002, message=str(error).encode()[:100])
        except ConnectionError:
            pass
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close()
        return socket

    async def _talk(self, socket: "WebSocketResponse", client: str) -> None:
        hello = Fields(await greeting(socket, HELLO_S))
        name, received, version = hello.text("session"), hello.whole("received"), hello.whole("version")
        if not _SESSION.match(name) or version != VERSION:
            raise WireError(f"HELLO of version {version}: expected {VERSION} and a session of 32 hexadecimal digits")
        session = self._sessions.get((client, name))
        if (session is None and hello.flag("resume")) or (session is not None and session.is_ending):
            await greet(socket, {"error": "unknown"})
            return
        if session is None:
            if len(self._sessions) >= self._policy.max_sessions or self._is_closing:
                await greet(socket, {"error": "full"})
                return
            session = Session(name, self._backend, self._policy, self._places, lambda _: self._forget(client, name))
            self._sessions[client, name] = session
        mine = session

        async def talk() -> None:
            await greet(socket, {"version": VERSION, "received": mine.peer.lane.received, **self._about()})
            await mine.peer.talk(socket, received, self._policy.heartbeat_s)

        await session.attach(talk)

    def _about(self) -> dict[str, object]:
        capabilities = self._backend.capabilities if isinstance(self._backend, Capable) else _UNKNOWN
        return {
            "capabilities": capabilities_to_json(self._policy.narrow(capabilities)),
            "heartbeat_s": self._policy.heartbeat_s,
            "orphan_s": self._policy.orphan_s,
        }

    def _forget(self, client: str, name: str) -> None:
        session = self._sessions.get((client, name))
        if session is not None and session.is_ended:
            del self._sessions[client, name]

    async def _remove(self, request: "Request") -> "StreamResponse":
        web = require("aiohttp.web", extra="remote", purpose="serving sandboxes")
        client = self._client(request)
        session = self._sessions.get((client, request.match_info["session"]))
        if session is None:
            raise web.HTTPNotFound(text="no such session\n")
        await session.close()
        response: Response = web.Response(status=204)
        return response


async def serve(
    backend: SandboxBackend,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tokens: Sequence[str] = (),
    token_file: Path | None = None,
    anonymous: bool = False,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    policy: ServerPolicy = ServerPolicy(),  # noqa: B008  # frozen
) -> None:
    """Serve the sandboxes of `backend` until cancelled; the arguments are those of `SandboxServer`.

    Raises:
        ConfigError: it would listen to strangers, or an argument cannot work.
    Cancellation: all sandboxes are closed.
    """
    server = SandboxServer(
        backend,
        host=host,
        port=port,
        tokens=tokens,
        token_file=token_file,
        anonymous=anonymous,
        tls_cert=tls_cert,
        tls_key=tls_key,
        policy=policy,
    )
    async with server:
        LOG.info("sandboxes at %s", server.url)
        await anyio.sleep_forever()


def _tls(cert: Path, key: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"tls_cert {str(cert)!r} and tls_key {str(key)!r} cannot be used: {type(error).__name__}"
        ) from None
    return context


def _require_asyncio(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise ConfigError(
            f"{what} works on aiohttp, which runs on asyncio: anyio.run(main, backend='asyncio')"
        ) from None
