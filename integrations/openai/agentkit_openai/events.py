"""The events of one streamed answer, and bodies of bounded size."""

import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio

from agentkit.errors import ModelError
from agentkit.extras import require
from agentkit_openai.faults import plain
from agentkit_openai.sse import SSEDecoder

if TYPE_CHECKING:
    import aiohttp

    from agentkit_openai.transport import Transport

ERROR_BYTES = 64 << 10
"""How much of a refusal is read."""
_DRAIN_S = 1.0
_EXPLAIN_S = 2.0
_END_S = 5.0


class EventStream:
    """The events of one answer: enter, iterate, leave. Leaving before the end closes the connection.

    Iterating gives the data of each event as bytes, and ends at `[DONE]` or where the server ends the body: `is_done`
    tells which.
    """

    __slots__ = (
        "_body", "_decoder", "_events", "_headers", "_next", "_path", "_response", "_transport", "is_complete",
        "is_done",
    )  # fmt: skip

    def __init__(
        self, transport: "Transport", path: str, body: Sequence[bytes], headers: Mapping[str, str], event_bytes: int
    ) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self._headers = headers
        self._decoder = SSEDecoder(limit_bytes=event_bytes)
        self._events: list[bytes] = []
        self._next = 0
        self._response: aiohttp.ClientResponse | None = None
        self.is_done = False
        self.is_complete = False
        """Set by who reads it, once nothing that matters is to come: then the end is waited for no longer than 5 s."""

    async def __aenter__(self) -> Self:
        """Wait for a connection, send the request, and read the head of the answer.

        Raises:
            ContextOverflow: the server says that the prompt leaves no room.
            ModelError: no connection, a refusal, or an answer that is no stream of events.
        Cancellation: the connection is closed.
        """
        transport = self._transport
        await transport.slots.acquire()
        try:
            response = await transport.open("POST", self._path, self._body, self._headers)
            if response.content_type != "text/event-stream":
                try:
                    content = await read_bounded(response, ERROR_BYTES, where=self.where, cut=True)
                finally:
                    response.close()
                said = plain(content.decode("utf-8", "replace"), secrets=transport.secrets)
                kind = plain(response.content_type, secrets=transport.secrets)
                raise ModelError(f"{self.where}: expected a stream of events, found {kind!r}: {said}")
        except BaseException:
            transport.slots.release()
            raise
        self._response = response
        return self

    @property
    def where(self) -> str:
        """The request, for messages."""
        return f"POST {self._transport.url(self._path)}"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the connection back if the answer was read to its end, else close it.

        Cancellation: it is closed.
        """
        response, self._response = self._response, None
        if response is None:
            return
        try:
            if self.is_done and kind is None and not response.content.at_eof():
                # The end of the body comes in a packet of its own after [DONE]; without it, the connection is lost to
                # the next request.
                with anyio.move_on_after(_DRAIN_S):
                    while await response.content.readany():
                        pass
        except Exception:  # noqa: S110  # all that was wanted has come: the connection is closed below
            pass
        finally:
            if response.content.at_eof():
                response.release()
            else:
                response.close()
            self._transport.slots.release()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """The next event's data.

        Raises:
            ModelError: the connection broke, or an event is too large.
        Cancellation: nothing is lost; leave the stream.
        """
        while self._next >= len(self._events):
            if self.is_done or not await self._read():
                raise StopAsyncIteration
        event = self._events[self._next]
        self._next += 1
        if event == b"[DONE]":
            self.is_done = True
            raise StopAsyncIteration
        return event

    async def _read(self) -> bool:
        response = self._response
        if response is None:
            raise ModelError(f"{self.where}: the stream is not open")
        data = b""
        try:
            with anyio.move_on_after(_END_S if self.is_complete else math.inf):
                data = await response.content.readany()
        except Exception as error:
            raise self._transport.lost(error, where=self.where) from self._transport.shown(error)
        self._events, self._next = self._decoder.feed(data), 0
        return bool(data)


async def read_bounded(response: "aiohttp.ClientResponse", limit_bytes: int, *, where: str, cut: bool = False) -> bytes:
    """The body of `response`. One that goes on past `limit_bytes` is cut there, and after 2 s, or refused.

    Raises:
        ModelError: the body is too large, or the connection broke.
    Cancellation: what was read is dropped.
    """
    aiohttp = require("aiohttp", extra="openai", purpose="a model behind an OpenAI-compatible server")
    content = bytearray()
    try:
        # What only explains a fault is not waited for as long as an answer: a body may trickle for ever.
        with anyio.move_on_after(_EXPLAIN_S if cut else math.inf):
            while data := await response.content.readany():
                content += data
                if len(content) > limit_bytes:
                    if cut:
                        break
                    raise ModelError(f"{where}: the answer is larger than {limit_bytes} bytes")
    except (aiohttp.ClientError, OSError) as error:
        if not cut:  # not shown further: it may quote what the server sent
            raise ModelError(f"{where}: {type(error).__name__} in the middle of the answer", retryable=True) from None
    return bytes(content[:limit_bytes])
