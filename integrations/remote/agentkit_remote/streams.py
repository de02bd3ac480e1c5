"""The bytes of one request, in either direction, with as many under way as the receiver has room for."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from agentkit_remote.frames import CHUNK_BYTES, WINDOW_BYTES, WireError


class Inflow:
    """What comes. Parts end with END; `None` stands for that. `grant` is told how many bytes more may come."""

    def __init__(self, grant: Callable[[int], None]) -> None:
        self._grant = grant
        self._pieces: deque[bytes | None] = deque()
        self._room = WINDOW_BYTES
        self._used = 0
        self._waiter: asyncio.Future[None] | None = None
        self._is_open = True

    def feed(self, data: bytes | None) -> None:
        """Take what arrived.

        Raises:
            WireError: it is more than was granted.
        """
        self._room -= len(data or b"")
        if self._room < 0:
            raise WireError("DATA beyond its credit")
        if not self._is_open:
            return
        if len(self._pieces) > WINDOW_BYTES:  # only ENDs take no credit
            raise WireError("too many parts")
        self._pieces.append(data)
        self._wake()

    def close(self) -> None:
        """Nothing more is wanted, or nothing more comes: `take` gives None from now on, once all was taken."""
        self._is_open = False
        self._wake()

    async def take(self) -> bytes | None:
        """The next bytes, or None at the end of a part.

        Cancellation: nothing is lost.
        """
        while not self._pieces:
            if not self._is_open:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        piece = self._pieces.popleft()
        if piece is not None:
            self._used += len(piece)
            if self._used >= WINDOW_BYTES // 2 and self._is_open:
                self._room += self._used
                self._grant(self._used)
                self._used = 0
        return piece

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Outflow:
    """What goes. `send` is given pieces of at most `CHUNK_BYTES`, one after another."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        self._send = send
        self._credit = WINDOW_BYTES
        self._more = asyncio.Event()
        self.is_open = True

    def credit(self, count: int) -> None:
        """The receiver has room for `count` bytes more."""
        self._credit = min(self._credit + count, WINDOW_BYTES)
        self._more.set()

    def close(self) -> None:
        """The receiver wants no more: what is still to be sent is dropped."""
        self.is_open = False
        self._more.set()

    async def send(self, data: bytes) -> None:
        """Send all of `data`, waiting for room.

        Cancellation: some of it was sent.
        """
        rest = memoryview(data)
        while rest and self.is_open:
            if self._credit == 0:
                self._more.clear()
                await self._more.wait()
                continue
            piece = rest[: min(CHUNK_BYTES, self._credit)]
            self._credit -= len(piece)
            rest = rest[len(piece) :]
            await self._send(bytes(piece))
