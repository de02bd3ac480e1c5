"""Who writes: a thread of our own with group commit, or the event loop itself.

The thread takes all records that have queued up, commits them together, and wakes those who wait with one call into the
event loop. Nobody holds one of anyio's worker threads meanwhile: a thousand waiting rollouts cost one thread. A record
is queued before its caller first waits, so a caller that is cancelled has still been heard.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Protocol

import anyio
from anyio.lowlevel import EventLoopToken, checkpoint, current_token

from agentkit.errors import AgentkitError
from agentkit.journal.codec import Codec
from agentkit.journal.errors import JournalError
from agentkit.journal.records import Operation, Prepared, prepare
from agentkit.journal.store import Store

_MAX_BATCH = 512


class Writer(Protocol):
    """Writes operations in the order submitted."""

    async def submit(self, operation: Operation) -> None:
        """Return once `operation` is durable."""
        ...

    async def close(self) -> None:
        """Write what was submitted, then close the file."""
        ...


class InlineWriter:
    """Writes on the event loop, which stands still meanwhile: for virtual time."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec

    async def submit(self, operation: Operation) -> None:
        """Write now, then give others a turn."""
        (error,) = _write(self._store, self._codec, [operation])
        if error is not None:
            raise error
        await checkpoint()

    async def close(self) -> None:
        """Close the file."""
        self._store.close()


class _Ticket:
    """One operation on its way, and the one who waits for it."""

    __slots__ = ("done", "error", "operation")

    def __init__(self, operation: Operation | None) -> None:
        self.operation = operation  # None asks the thread to end
        self.done = anyio.Event()
        self.error: AgentkitError | None = None


class ThreadWriter:
    """One daemon thread for one journal. `submit` and `close` belong to the event loop it was made in."""

    def __init__(self, store: Store, codec: Codec) -> None:
        self._store = store
        self._codec = codec
        self._queue: SimpleQueue[_Ticket] = SimpleQueue()
        self._call_soon = _thread_safe_call(current_token())
        Thread(target=self._run, name=f"journal {store.path.name}", daemon=True).start()

    async def submit(self, operation: Operation) -> None:
        """Queue, then wait for the commit."""
        await self._wait(_Ticket(operation))

    async def close(self) -> None:
        """Wait until the thread has written everything and closed the file."""
        await self._wait(_Ticket(None))

    async def _wait(self, ticket: _Ticket) -> None:
        self._queue.put(ticket)
        await ticket.done.wait()
        if ticket.error is not None:
            raise ticket.error

    def _run(self) -> None:
        last: _Ticket | None = None
        while last is None:
            batch = self._take()
            if batch[-1].operation is None:
                last = batch.pop()
            operations = [ticket.operation for ticket in batch if ticket.operation is not None]
            for ticket, error in zip(batch, _write(self._store, self._codec, operations), strict=True):
                ticket.error = error
            if last is not None:
                try:
                    self._store.close()
                except Exception as error:
                    last.error = JournalError(f"cannot close journal {str(self._store.path)!r}: {error}")
                batch.append(last)
            with suppress(RuntimeError):  # the event loop has ended: nobody waits any more
                self._call_soon(_wake, batch)

    def _take(self) -> list[_Ticket]:
        batch = [self._queue.get()]
        with suppress(Empty):
            while len(batch) < _MAX_BATCH and batch[-1].operation is not None:
                batch.append(self._queue.get_nowait())
        return batch


def _wake(batch: Sequence[_Ticket]) -> None:
    for ticket in batch:
        ticket.done.set()


def _write(store: Store, codec: Codec, operations: Sequence[Operation]) -> list[AgentkitError | None]:
    """Per operation, None once it is durable or why it is not. Never raises: the thread has nobody to raise to."""
    results: list[AgentkitError | None] = [None] * len(operations)
    places: list[int] = []
    records: list[Prepared] = []
    for place, operation in enumerate(operations):
        try:
            records.append(prepare(operation, codec))
            places.append(place)
        except Exception as error:  # a value that cannot be encoded is the fault of this record alone
            results[place] = JournalError(f"cannot encode {type(operation).__name__.lower()} record: {error!r}")
    if records:
        try:
            errors = store.commit(records)
        except Exception as error:
            errors = [JournalError(f"cannot write journal {str(store.path)!r}: {error!r}") for _ in records]
        for place, result in zip(places, errors, strict=True):
            results[place] = result
    return results


def _thread_safe_call(token: EventLoopToken) -> Callable[..., object]:
    """How a foreign thread schedules a callback in the event loop of `token` without waiting for it to run.

    `anyio.from_thread.run_sync` waits: the next commit would have to wait for a busy event loop.
    """
    native = token.native_token
    for name in ("call_soon_threadsafe", "run_sync_soon"):  # asyncio's loop, trio's token
        call: Callable[..., object] | None = getattr(native, name, None)
        if call is not None:
            return call
    raise JournalError(f"a writer thread cannot call into an event loop of type {type(native).__name__}")
