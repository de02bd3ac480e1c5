"""Many rollouts at once: limits, fairness, back-pressure, groups, and one place where all of it ends."""

import logging
import math
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Container,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define

from agentkit.actors._guard import Detached
from agentkit.actors._record import Record
from agentkit.actors._services import Services
from agentkit.actors.actor import Actor
from agentkit.actors.agent import Agent
from agentkit.actors.permits import FairPermits
from agentkit.errors import AgentkitError, ConfigError
from agentkit.protocols import Outcome, Sink, Task, Trajectory
from agentkit.tools import stuck_threads

logger = logging.getLogger(__name__)

Tasks: TypeAlias = Iterable[Task] | AsyncIterable[Task]


@runtime_checkable
class Resumable(Protocol):
    """A sink that knows what an earlier run left: the pool skips what is sealed and numbers attempts after those."""

    def sealed(self) -> Container[tuple[str, int]]:
        """The (task id, index) pairs that are sealed."""
        ...

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """The number of the next attempt at a rollout."""
        ...


class Pool:
    """Runs an agent's rollouts concurrently; `async with` bounds their lives.

    `max_rollouts` limits live rollouts, `max_starts` envs that start at once, `max_generations` requests to the model;
    permits are handed out fairly across groups. `group_size` rollouts are made of each task. Leaving the block cancels
    what is left, seals it, closes every env, and logs what could not be ended (`stuck`).
    """

    def __init__(
        self,
        agent: Agent,
        *,
        max_rollouts: float = 256,
        max_starts: float = 16,
        max_generations: float = math.inf,
        group_size: int = 1,
        sink: Sink | None = None,
    ) -> None:
        if group_size < 1:
            raise ConfigError(f"pool.group_size must be at least 1, found {group_size!r}")
        self.agent = agent
        self.group_size = group_size
        self.live = FairPermits(max_rollouts, name="pool.max_rollouts")
        self._reports: list[str] = []
        self._services = Services(
            self._run_child,
            self._reports.append,
            sink,
            FairPermits(max_starts, name="pool.max_starts"),
            FairPermits(max_generations, name="pool.max_generations"),
        )
        self._group: TaskGroup | None = None

    async def __aenter__(self) -> Self:
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        group, self._group = self._group, None
        assert group is not None, "a pool is left after it was entered"
        group.cancel_scope.cancel()
        cancelled = error is not None and not isinstance(error, Exception)
        try:
            if cancelled:
                return await group.__aexit__(kind, error, trace)
            # An exception of the block goes on as it is: the group would wrap it, or take it for its own cancellation.
            await group.__aexit__(None, None, None)
            return None
        except BaseExceptionGroup as errors:
            faults = list(_leaves(errors))
            if all(isinstance(fault, AgentkitError) for fault in faults):  # the sink's, say: the first says it all
                raise faults[0] from errors
            raise
        finally:
            for name in self.stuck:
                logger.warning("left behind: %s", name)

    @property
    def stuck(self) -> tuple[str, ...]:
        """What could not be ended or closed so far, and user threads that still run."""
        return (*self._reports, *stuck_threads())

    def pause(self) -> None:
        """Begin no generation until `resume`, while weights are synchronised, say; those under way go on."""
        self._services.generations.pause()

    def resume(self) -> None:
        """Let generations begin again."""
        self._services.generations.resume()

    def start(self, task: Task | str, *, index: int = 0) -> Actor:
        """Start one rollout now, past `max_rollouts`, and give a handle on it.

        Raises:
            ConfigError: the pool is not entered, or already left.
        """
        if isinstance(task, str):
            task = Task("task", task)
        self._open_group()
        actor = self.actor(task, index)
        self.spawn(actor.run, name=f"rollout {actor.key}")
        return actor

    def actor(self, task: Task, index: int, *, replaces: int | None = None) -> Actor:
        """A handle on a rollout that is not running yet; `Pool.start` is what you want."""
        sink: object = self._services.sink
        first = sink.next_attempt(task.id, index) if isinstance(sink, Resumable) else 0
        return Actor(self._services, self.agent, task, index, first_attempt=first, replaces=replaces)

    def spawn(self, function: Callable[..., Coroutine[Any, Any, object]], *args: object, name: str) -> None:
        """Run `function(*args)` until the pool is left.

        Raises:
            ConfigError: the pool is not entered, or already left.
        """
        self._open_group().start_soon(function, *args, name=name)

    def _open_group(self) -> TaskGroup:
        if self._group is None:
            raise ConfigError("the pool is not open: use it inside `async with Pool(...) as pool`")
        return self._group

    def sealed(self) -> Container[tuple[str, int]]:
        """The (task id, index) pairs that the sink held sealed when asked."""
        sink: object = self._services.sink
        return sink.sealed() if isinstance(sink, Resumable) else ()

    def run(self, tasks: Tasks) -> "Run":
        """The rollouts of `tasks`: iterate for trajectories as they finish, await for a list, enter to leave early.

        Rollouts that the sink already holds sealed are skipped. Tasks are taken from the source only as rollouts end.
        """
        return Run(self, tasks)

    async def _run_child(self, agent: Agent, task: Task, index: int, *, parent: Record) -> Trajectory:
        # A child is sealed within its parent's trajectory, so it has no sink of its own.
        services = Services(
            self._run_child, self._reports.append, None, self._services.starts, self._services.generations
        )
        actor = Actor(services, agent, task, index, parent=parent)
        parent.running_children.append(actor)
        self.spawn(self._tend_child, actor, parent, name=f"child {actor.key}")
        try:
            await actor.settled()
        except BaseException:
            actor.cancel()
            with anyio.CancelScope(shield=True):
                await actor.settled()
            raise
        return await actor.result()

    async def _tend_child(self, actor: Actor, parent: Record) -> None:
        try:
            parent.children.append(await actor.run())
        finally:
            parent.running_children.remove(actor)


@define
class _Group:
    """The rollouts of one task: replacements get the indices after those of the group."""

    next_index: int
    replacements_left: int


class Run:
    """Trajectories of a pool as they finish. Iterate it, await it, or enter it so that leaving cancels what is left."""

    def __init__(self, pool: Pool, tasks: Tasks) -> None:
        self._pool = pool
        self._tasks = tasks
        self._scope = anyio.CancelScope()
        self._receive: MemoryObjectReceiveStream[Trajectory] | None = None
        self._error: BaseException | None = None

    def __aiter__(self) -> AsyncIterator[Trajectory]:
        return self

    async def __anext__(self) -> Trajectory:
        try:
            return await self._stream().receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            if self._error is not None:
                error, self._error = self._error, None
                raise error from None
            raise StopAsyncIteration from None

    def __await__(self) -> Generator[Any, Any, list[Trajectory]]:
        return self._collect().__await__()

    async def __aenter__(self) -> Self:
        self._stream()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Cancel what is left; trajectories that nobody took are in the sink."""
        self._scope.cancel()
        self._stream().close()

    async def _collect(self) -> list[Trajectory]:
        return [trajectory async for trajectory in self]

    def _stream(self) -> MemoryObjectReceiveStream[Trajectory]:
        if self._receive is None:
            # A finished rollout keeps its live permit until its trajectory is taken: that is the back-pressure, so
            # the buffer need only hold what a consumer that has stopped taking would otherwise block.
            send, self._receive = anyio.create_memory_object_stream[Trajectory](0)
            self._pool.spawn(self._feed, send, name="feed of a run")
        return self._receive

    async def _feed(self, send: MemoryObjectSendStream[Trajectory]) -> None:
        try:
            with send, self._scope:
                await self._feed_all(send)
        finally:
            if self._receive is not None:
                self._receive.close()

    async def _feed_all(self, send: MemoryObjectSendStream[Trajectory]) -> None:
        sealed, seen = self._pool.sealed(), set[str]()
        async with anyio.create_task_group() as rollouts, _Source(self._tasks) as source:
            try:
                async for task in source:
                    if task.id in seen:
                        raise ConfigError(
                            f"two tasks of one run have the id {task.id!r}: ids name groups and rollouts, "
                            "make them unique"
                        )
                    seen.add(task.id)
                    await self._feed_group(rollouts, send, task, sealed)
            except Exception as error:  # what runs goes on; the consumer hears of it at the end
                self._error = error

    async def _feed_group(
        self,
        rollouts: TaskGroup,
        send: MemoryObjectSendStream[Trajectory],
        task: Task,
        sealed: Container[tuple[str, int]],
    ) -> None:
        group = _Group(self._pool.group_size, self._pool.agent.outcomes.replacements)
        for index in range(self._pool.group_size):
            if (task.id, index) not in sealed:
                await self._pool.live.acquire(task.id)
                rollouts.start_soon(self._one, rollouts, send, task, index, group, None)

    async def _one(
        self,
        rollouts: TaskGroup,
        send: MemoryObjectSendStream[Trajectory],
        task: Task,
        index: int,
        group: _Group,
        replaces: int | None,
    ) -> None:
        """Run one rollout; it holds a live permit already, until its trajectory is taken."""
        try:
            trajectory = await self._pool.actor(task, index, replaces=replaces).run()
            if trajectory.outcome is Outcome.REPLACE and group.replacements_left:
                group.replacements_left -= 1
                rollouts.start_soon(self._replace, rollouts, send, task, group, index)
            try:
                await send.send(trajectory)
            except anyio.BrokenResourceError:
                pass  # the consumer has left; the trajectory is in the sink
        finally:
            self._pool.live.release()

    async def _replace(
        self,
        rollouts: TaskGroup,
        send: MemoryObjectSendStream[Trajectory],
        task: Task,
        group: _Group,
        replaces: int,
    ) -> None:
        index, group.next_index = group.next_index, group.next_index + 1
        await self._pool.live.acquire(task.id)
        await self._one(rollouts, send, task, index, group, replaces)


class _Source:
    """Tasks from a sync or async iterable. An async one is user code: it runs detached and can be ended."""

    def __init__(self, tasks: Tasks) -> None:
        self._asynchronous = tasks if isinstance(tasks, AsyncIterable) else None
        self._synchronous = iter(()) if isinstance(tasks, AsyncIterable) else iter(tasks)
        self._pump: Detached[None] | None = None

    async def __aenter__(self) -> Self:
        if self._asynchronous is not None:
            self._send, self._receive = anyio.create_memory_object_stream[Task](0)
            self._pump = Detached(self._pump_tasks, name="task source")
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

    async def _pump_tasks(self) -> None:
        assert self._asynchronous is not None
        tasks = aiter(self._asynchronous)
        try:
            with self._send:
                async for task in tasks:
                    await self._send.send(task)
        finally:
            if isinstance(tasks, AsyncGenerator):
                with anyio.CancelScope(shield=True):  # bounded: the pump itself is ended by force
                    await tasks.aclose()


def _leaves(errors: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
