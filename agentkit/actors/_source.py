"""Where a run takes its tasks from."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from hashlib import sha256
from typing import Self, TypeAlias

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from agentkit.actors._guard import Detached
from agentkit.errors import ConfigError
from agentkit.protocols import Task

Tasks: TypeAlias = Iterable[Task | str] | AsyncIterable[Task | str]


def as_task(task: object, number: int) -> Task:
    """A task; a string is its user message, and its place in the source and a digest of it its name.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(task, Task):
        return task
    if isinstance(task, str):
        digest = sha256(task.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        return Task(f"task{number}-{digest}", task)  # so that a journal tells it from another text in the same place
    raise ConfigError(f"task {number} must be a Task or a string, found {task!r}")


class Source:
    """Tasks from a sync or async iterable. An async one is user code: it runs detached and can be ended."""

    def __init__(self, tasks: Tasks) -> None:
        if isinstance(tasks, Task | str) or not isinstance(tasks, Iterable | AsyncIterable):
            raise ConfigError(f"pool.run takes many tasks, a list or another iterable, found {tasks!r}")
        self._tasks = tasks
        self._count = 0
        self._synchronous = iter(()) if isinstance(tasks, AsyncIterable) else iter(tasks)
        self._pump: Detached[None] | None = None

    async def __aenter__(self) -> Self:
        tasks = self._tasks
        if isinstance(tasks, AsyncIterable):
            self._send, self._receive = anyio.create_memory_object_stream[Task | str](0)
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
        task = await self._next()
        self._count += 1
        return as_task(task, self._count - 1)

    async def _next(self) -> Task | str:
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


async def _pump(source: AsyncIterable[Task | str], send: MemoryObjectSendStream[Task | str]) -> None:
    tasks = aiter(source)
    try:
        with send:
            async for task in tasks:
                await send.send(task)
    finally:
        if isinstance(tasks, AsyncGenerator):
            with anyio.CancelScope(shield=True):  # bounded: the pump itself is ended by force
                await tasks.aclose()
