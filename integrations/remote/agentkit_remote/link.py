"""The client's connection: one for all sandboxes of a process, come back to whenever it breaks.

While it is broken, requests wait. Once the server has not answered for `reconnect_s`, or says that it knows nothing of
us any more, everything that was there is gone, and the link with it.
"""

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from attrs import define, frozen

from agentkit.errors import AgentkitError, ConfigError, SandboxDead, SandboxError
from agentkit.extras import require
from agentkit.protocols.sandbox_spec import Capabilities
from agentkit_remote.frames import MESSAGE_BYTES, SUBPROTOCOL, VERSION, Frame, Kind, WireError
from agentkit_remote.messages import Fields, capabilities_from_json, error_from_json
from agentkit_remote.peer import Peer, greet, greeting
from agentkit_remote.streams import Inflow, Outflow

if TYPE_CHECKING:
    from aiohttp import ClientSession, ClientWebSocketResponse

LOG = logging.getLogger("agentkit.sandbox.remote")
T = TypeVar("T")
HELLO_S = 10.0
LONGEST_WAIT_S = 2.0
CANCEL_S = 2.0
LONGEST_HEARTBEAT_S = 300.0


@frozen(kw_only=True)
class Address:
    """Where a server is and how to show who we are."""

    url: str
    """Without a path: http://host:port, or https."""
    token: str | None
    tls_ca: Path | None = None

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def tls(self) -> ssl.SSLContext | bool:
        """How to check the server's certificate.

        Raises:
            ConfigError: `tls_ca` cannot be read.
        """
        if self.tls_ca is None:
            return True
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"tls_ca {str(self.tls_ca)!r} cannot be used: {type(error).__name__}") from None


@define(eq=False)
class Call:
    """One request under way, seen by who asked."""

    number: int
    inflow: Inflow
    outflow: Outflow
    answer: "asyncio.Future[Fields]"

    async def part(self, limit_bytes: int, take: Callable[[bytes], object]) -> None:
        """Hand what comes, up to the end of a part, to `take`.

        Raises:
            SandboxError: the request failed, or more than `limit_bytes` came.
        """
        while (piece := await self.inflow.take()) is not None:
            limit_bytes -= len(piece)
            if limit_bytes < 0:
                raise SandboxError("the server sent more than was asked for")
            take(piece)


class Link:
    """The session with a server, from the first request until `close`."""

    def __init__(self, address: Address, *, connect_s: float, reconnect_s: float) -> None:
        self.session = secrets.token_hex(16)
        self.capabilities: Capabilities | None = None
        self.orphan_s = 0.0
        """How long the server waits for us, seconds."""
        self.fault: AgentkitError | None = None
        """Why it is of no use any more."""
        self.users = 0
        self._address = address
        self._connect_s = connect_s
        self._reconnect_s = reconnect_s
        self._peer = Peer(self._on_frame)
        self._calls: dict[int, Call] = {}
        self._last = 0
        self._connected = asyncio.Event()
        self._over = asyncio.Event()
        self._jobs: set[asyncio.Future[Any]] = set()
        self._task = asyncio.create_task(self._run(), name="sandboxes of another machine")

    # Requests

    async def connected(self) -> None:
        """Until there is a connection.

        Raises:
            SandboxError: there is none within `connect_s`; there may be later.
            SandboxDead: there is none for good.
        Cancellation: nothing happened.
        """
        if not self._connected.is_set():
            over = asyncio.ensure_future(self._over.wait())
            connected = asyncio.ensure_future(self._connected.wait())
            try:
                await asyncio.wait([over, connected], timeout=self._connect_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                over.cancel()
                connected.cancel()
        if self.fault is not None:
            raise copy(self.fault)
        if not self._connected.is_set():
            raise SandboxError(f"{self._address.url} did not answer within {self._connect_s} s", retryable=True)

    @asynccontextmanager
    async def call(self, operation: str, **arguments: Any) -> AsyncIterator[Call]:
        """A request. Left with an error, by cancellation say, it is cancelled at the server too.

        Raises:
            SandboxDead: the server is gone.
            SandboxError: the arguments are too large.
        """
        if self.fault is not None:
            raise SandboxDead(str(self.fault))
        self._last = number = self._last + 1
        peer = self._peer
        answer: asyncio.Future[Fields] = asyncio.get_running_loop().create_future()
        inflow = Inflow(lambda count: peer.send(Frame(Kind.CREDIT, number, number=count)))
        outflow = Outflow(lambda data: peer.send_data(number, data))
        call = Call(number, inflow, outflow, answer)
        peer.send(Frame(Kind.OPEN, number, body={"op": operation, **arguments}))
        self._calls[number] = call
        try:
            yield call
        except BaseException:
            # Also where it has been answered by now: what it made is not wanted.
            if self.fault is None:
                inflow.close()
                outflow.close()
                peer.send(Frame(Kind.CANCEL, number))
                await self._settle(answer)
            raise
        finally:
            self._calls.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # it was seen, or is of no interest

    async def ask(self, operation: str, body: bytes | None = None, **arguments: Any) -> Fields:
        """What the server answers to a request that gives no bytes.

        Raises:
            SandboxError: it failed; SandboxDead where the server is gone.
        Cancellation: it is cancelled at the server too, within 2 s.
        """
        async with self.call(operation, **arguments) as call:
            if body is not None:
                await self.give(call, body)
            return await self.result(call)

    async def result(self, call: Call) -> Fields:
        """What the server answers.

        Raises:
            SandboxError: the request failed.
        Cancellation: the answer is waited for still, by who cancels.
        """
        return await asyncio.shield(call.answer)

    async def surely(self, job: Coroutine[Any, Any, T]) -> T:
        """The result of `job`, which comes to its end whatever happens to the caller.

        Cancellation: shielded; where it is native, as by `task.cancel()`, the job goes on without the caller.
        """
        task = asyncio.ensure_future(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(task)
        return task.result()

    async def give(self, call: Call, body: bytes) -> None:
        """Send the bytes of a request and say that these were all.

        Cancellation: some were sent.
        """
        await call.outflow.send(body)
        self.finish(call)

    def finish(self, call: Call) -> None:
        """Say that these were all the bytes of the request."""
        if not call.answer.done():
            self._peer.send(Frame(Kind.END, call.number))

    async def _settle(self, answer: "asyncio.Future[Fields]") -> None:
        """Wait until the server has done what it was asked to undo; not long, and not while it cannot hear us."""
        if self._connected.is_set() and not answer.done():
            with anyio.CancelScope(shield=True):
                await asyncio.wait([answer], timeout=CANCEL_S)

    def _on_frame(self, frame: Frame) -> None:
        call = self._calls.get(frame.request)
        if not 0 < frame.request <= self._last or frame.kind in (Kind.OPEN, Kind.CANCEL):
            raise WireError(f"{frame.kind.name} of request {frame.request}, which was not made")
        if call is None:
            return  # cancelled meanwhile
        match frame.kind:
            case Kind.CREDIT:
                call.outflow.credit(frame.number)
            case Kind.RESULT:
                self._answer(call, Fields(frame.body or {}))
            case _:
                call.inflow.feed(frame.data or None)

    def _answer(self, call: Call, fields: Fields) -> None:
        call.outflow.close()
        if not call.answer.done():
            if fields.raw("error") is not None:
                call.answer.set_exception(error_from_json(fields.object("error")))
            else:
                call.answer.set_result(fields.object("ok"))
        call.inflow.close()

    # The connection

    async def close(self) -> bool:
        """End the session: the server closes all that is left of it; whether it said so. Shielded, bounded."""
        confirmed = self.capabilities is None  # nothing was ever started
        with anyio.move_on_after(CANCEL_S * 5, shield=True):
            if self.fault is None and self._connected.is_set():
                try:
                    await self.ask("bye")
                    confirmed = True
                except SandboxError as error:
                    LOG.debug("no goodbye from %s: %s", self._address.url, error)
        self._fail(SandboxDead("the connection is closed"))
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task], timeout=CANCEL_S)
        return confirmed

    def _fail(self, fault: AgentkitError) -> None:
        if self.fault is None:
            self.fault = fault
            self._over.set()
            self._peer.stop()
            for call in list(self._calls.values()):
                call.outflow.close()
                if not call.answer.done():
                    call.answer.set_exception(SandboxDead(str(fault)))
                call.inflow.close()

    async def _run(self) -> None:
        try:
            aiohttp = require("aiohttp", extra="remote", purpose="using the sandboxes of another machine")
            async with aiohttp.ClientSession(
                headers=self._address.headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=HELLO_S),
                connector=aiohttp.TCPConnector(ssl=self._address.tls(), force_close=True),
                cookie_jar=aiohttp.DummyCookieJar(),
            ) as http:
                await self._keep(http)
        except AgentkitError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(SandboxDead("the event loop of these sandboxes is closed"))
            raise
        except Exception as error:
            LOG.exception("the connection to %s failed", self._address.url)
            self._fail(SandboxDead(f"the connection to {self._address.url} failed: {type(error).__name__}"))

    async def _keep(self, http: "ClientSession") -> None:
        failed = 0
        began = time.monotonic()
        while self.fault is None:
            try:
                await self._connection(http)
                failed, began = 0, self._peer.last_heard
            except OSError as error:
                LOG.debug("%s does not answer: %s", self._address.url, error)
            finally:
                if self._connected.is_set():
                    LOG.info("the connection to %s broke", self._address.url)
                    self._connected.clear()
                    failed, began = 0, self._peer.last_heard
            silent_s = time.monotonic() - began
            if self.capabilities is not None and silent_s > self._reconnect_s:
                raise SandboxDead(f"{self._address.url} did not answer for {silent_s:.0f} s")
            if self.capabilities is None and silent_s > self._connect_s:
                raise SandboxError(f"{self._address.url} did not answer within {self._connect_s} s", retryable=True)
            failed += 1
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(LONGEST_WAIT_S, 0.05 * 2 ** min(failed, 16)))

    async def _connection(self, http: "ClientSession") -> None:
        """One connection, from its beginning to its end."""
        aiohttp = require("aiohttp", extra="remote", purpose="using the sandboxes of another machine")
        try:
            async with asyncio.timeout(HELLO_S):
                socket: ClientWebSocketResponse = await http.ws_connect(
                    f"{self._address.url}/v1/connect",
                    protocols=[SUBPROTOCOL],
                    max_msg_size=MESSAGE_BYTES + 1,
                    timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                raise ConfigError(f"{self._address.url} does not know this token") from None
            if error.status >= 500:
                raise ConnectionError(f"status {error.status}") from None
            raise ConfigError(f"{self._address.url} is no server of sandboxes: status {error.status}") from None
        except aiohttp.InvalidURL:
            raise ConfigError(f"url {self._address.url!r} is none") from None
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise ConfigError(f"{self._address.url} shows a certificate that is not trusted: {error}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ConnectionError(f"{type(error).__name__}") from error
        try:
            hello = {
                "version": VERSION,
                "session": self.session,
                "received": self._peer.lane.received,
                "resume": self.capabilities is not None,
            }
            await greet(socket, hello)
            about = Fields(await greeting(socket, HELLO_S))
            self._understand(about)
            self._connected.set()
            beat_s = min(about.seconds("heartbeat_s") or LONGEST_HEARTBEAT_S, LONGEST_HEARTBEAT_S)
            await self._peer.talk(socket, about.whole("received"), beat_s)
        except WireError as error:
            raise SandboxDead(f"{self._address.url} does not keep to the protocol: {error}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await socket.close()

    def _understand(self, about: Fields) -> None:
        match about.optional_text("error"):
            case None:
                self.orphan_s = about.seconds("orphan_s") or 0.0
                self.capabilities = capabilities_from_json(about.object("capabilities"))
            case "unknown":
                raise SandboxDead(f"{self._address.url} was restarted, or did not hear of us for too long")
            case "full":
                raise SandboxError(f"{self._address.url} takes no more clients for now", retryable=True)
            case other:
                raise SandboxError(f"{self._address.url} refused: {other[:200]!r}")
