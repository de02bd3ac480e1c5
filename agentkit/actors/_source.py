"""Where a run takes its tasks from."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from typing import Self, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from agentkit.actors._guard import Detached
from agentkit.protocols import Task

Tasks: TypeAlias = Iterable[Task] | AsyncIterable[Task]


class Source:
    """Tasks from a sync or async iterable. An async one is user code: it runs detached and can be ended."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._synchronous = iter(()) if isinstance(tasks, AsyncIterable) else iter(tasks)
        self._pump: Detached[None] | None = None

    async def __aenter__(self) -> Self:
        tasks = self._tasks
        if isinstance(tasks, AsyncIterable):
            self._send, self._receive = anyio.create_memory_object_stream[Task](0)
            self._pump = Detached(lambda: _pump(tasks, self._send), name="task source")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._pump is not None:
            await self._pump.end(grace_s=1.0)
            self._send.close()
            self._receive.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Task:
        if self._pump is None:
            for task in self._synchronous:
                return task
            raise StopAsyncIteration
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            await self._pump.done.wait()
            if self._pump.error is not None:
                raise self._pump.error from None
            raise StopAsyncIteration from None


async def _pump(source: AsyncIterable[Task], send: MemoryObjectSendStream[Task]) -> None:
    tasks = aiter(source)
    try:
        with send:
            async for task in tasks:
                await send.send(task)
    finally:
        if isinstance(tasks, AsyncGenerator):
            with anyio.CancelScope(shield=True):  # bounded: the pump itself is ended by force
                await tasks.aclose()
