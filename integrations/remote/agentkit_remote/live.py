"""Output on its way to a client while the program still runs."""

import asyncio
from collections import deque

from agentkit_remote.frames import WINDOW_BYTES
from agentkit_remote.gate import Gate
from agentkit_remote.streams import Outflow

MOST_BYTES = 4 << 20


class Live:
    """Takes output at once and sends it as fast as the client takes it.

    The gate is shut while more than `WINDOW_BYTES` wait, so that the program waits too. What still comes then, from a
    program that is being killed or a back end that cannot be held, is left out beyond `MOST_BYTES`, and a line says
    so: memory is bounded whatever happens.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._pieces: deque[bytes] = deque()
        self._bytes = 0
        self._left_out = 0
        self._is_over = False
        self._news = asyncio.Event()

    def take(self, data: bytes) -> None:
        """Take the next bytes of the output."""
        if not data:
            return
        if self._bytes + len(data) > MOST_BYTES:
            self._left_out += len(data)
            return
        self._note_gap()
        self._add(data)
        if self._bytes > WINDOW_BYTES:
            self._gate.shut()

    def end(self) -> None:
        """There is no more."""
        self._note_gap()
        self._is_over = True
        self._news.set()

    async def drain(self, outflow: Outflow) -> None:
        """Send all there is until the end.

        Cancellation: what was not sent is dropped.
        """
        while self._pieces or not self._is_over:
            if not self._pieces:
                self._news.clear()
                await self._news.wait()
                continue
            piece = self._pieces.popleft()
            await outflow.send(piece)
            self._bytes -= len(piece)
            if self._bytes <= WINDOW_BYTES // 2:
                self._gate.open()

    def _note_gap(self) -> None:
        if self._left_out:
            gap, self._left_out = self._left_out, 0
            self._add(f"\n[... {gap} bytes left out ...]\n".encode())

    def _add(self, data: bytes) -> None:
        self._pieces.append(data)
        self._bytes += len(data)
        self._news.set()
