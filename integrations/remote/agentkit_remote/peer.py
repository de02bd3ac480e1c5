"""One side of a session: what goes out in fair turns, what comes in, and whether the other side still lives.

aiohttp, so asyncio only. A `Peer` outlives its connections; `talk` is one connection from HELLO to its end.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentkit_remote.frames import KEPT, OUTBOX_BYTES, Frame, Kind, WireError, decode, encode
from agentkit_remote.lane import Lane

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse, web

    Socket = ClientWebSocketResponse | web.WebSocketResponse

DEAD_AFTER = 2.5  # heartbeats without a word from the other side
CLOSE_S = 1.0


class Peer:
    """Sends and receives the frames of one session. `on_frame` is called for each that came, and may not wait."""

    def __init__(self, on_frame: Callable[[Frame], None]) -> None:
        self.lane = Lane()
        self.last_heard = time.monotonic()
        self._on_frame = on_frame
        self._news = asyncio.Event()
        self._room = asyncio.Event()
        self._turn = asyncio.Lock()  # first come, first served: no request holds up the others
        self._ack_due = False
        self._ping_due = False
        self._is_over = False

    def stop(self) -> None:
        """Nobody will connect any more: what is sent from now on goes nowhere, and does not wait."""
        self._is_over = True
        self._room.set()

    def send(self, frame: Frame) -> None:
        """Send a small frame as soon as possible, once, however often the connection breaks.

        Raises:
            SandboxError: it is too large.
        """
        if not self._is_over:
            self.lane.push(encode(frame))
            self._news.set()

    async def send_data(self, request: int, data: bytes) -> None:
        """Send bytes of a request, once there is room.

        Cancellation: nothing was sent.
        """
        async with self._turn:
            while self.lane.kept_bytes > OUTBOX_BYTES and not self._is_over:
                self._room.clear()
                await self._room.wait()
            self.send(Frame(Kind.DATA, request, data=data))

    async def talk(self, socket: "Socket", received: int, heartbeat_s: float) -> None:
        """Exchange frames until the connection ends or is dead; `received` is what the other side has by its HELLO.

        Raises:
            WireError: the other side does not keep to the protocol.
        Cancellation: the connection is closed, the session is not.
        """
        self.lane.resume(received)
        self._room.set()
        self.last_heard = time.monotonic()
        jobs = [
            asyncio.ensure_future(job) for job in (self._read(socket), self._write(socket), self._beat(heartbeat_s))
        ]
        try:
            await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            if jobs[1].done():  # what was read last may say why nothing can be written any more
                await asyncio.wait(jobs[:1], timeout=2 * CLOSE_S)
        finally:
            for job in jobs:
                job.cancel()
            results = await asyncio.gather(*jobs, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, ConnectionError | RuntimeError | OSError):
                raise result

    async def _read(self, socket: "Socket") -> None:
        while True:
            message = await socket.receive()
            if message.type.name != "BINARY":
                if message.type.name in ("TEXT", "PING", "PONG"):
                    raise WireError(f"{message.type.name} message: all are binary")
                if isinstance(message.data, Exception) and getattr(message.data, "code", 0) == 1009:
                    raise WireError("message larger than the protocol's")
                return
            self._take(message.data)

    def _take(self, data: bytes) -> None:
        frame = decode(data)
        self.last_heard = time.monotonic()
        if frame.kind is Kind.ACK:
            self.lane.acknowledge(frame.number)
            self._room.set()
        elif frame.kind in KEPT:
            if self.lane.receive(len(data)):
                self._ack_due = True
                self._news.set()
            self._on_frame(frame)
        elif frame.kind is not Kind.PING:
            raise WireError(f"{frame.kind.name} in the middle of a connection")

    async def _write(self, socket: "Socket") -> None:
        while True:
            if self._ack_due:
                self._ack_due = False
                await socket.send_bytes(encode(Frame(Kind.ACK, number=self.lane.acknowledged())))
            if self._ping_due:
                self._ping_due = False
                await socket.send_bytes(encode(Frame(Kind.PING)))
            message = self.lane.pop()
            if message is not None:
                await socket.send_bytes(message)
            elif not (self._ack_due or self._ping_due):
                self._news.clear()
                await self._news.wait()

    async def _beat(self, heartbeat_s: float) -> None:
        while time.monotonic() - self.last_heard < DEAD_AFTER * heartbeat_s:
            self._ping_due = True
            self._news.set()
            await asyncio.sleep(heartbeat_s)


async def greet(socket: "Socket", body: dict[str, Any]) -> None:
    """Send a HELLO."""
    await socket.send_bytes(encode(Frame(Kind.HELLO, body=body)))


async def greeting(socket: "Socket", timeout_s: float) -> dict[str, Any]:
    """The HELLO of the other side.

    Raises:
        WireError: something else came.
        ConnectionError: nothing came.
    """
    try:
        async with asyncio.timeout(timeout_s):
            message = await socket.receive()
    except TimeoutError:
        raise ConnectionError("no HELLO came") from None
    if message.type.name != "BINARY":
        raise ConnectionError("the connection ended before a HELLO")
    frame = decode(message.data)
    if frame.kind is not Kind.HELLO or frame.body is None:
        raise WireError(f"{frame.kind.name} before a HELLO")
    return frame.body
