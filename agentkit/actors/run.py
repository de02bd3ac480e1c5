"""The rollouts of one source of tasks, in a pool."""

from collections.abc import AsyncIterator, Container, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from attrs import define, field

from agentkit.actors._source import Source
from agentkit.actors.agent import Agent
from agentkit.errors import ConfigError
from agentkit.protocols import Outcome, Task, Trajectory

if TYPE_CHECKING:
    from agentkit.actors.pool import Pool


@define
class _Group:
    """The rollouts of one task: replacements get the indices after those of the group."""

    agent: Agent
    next_index: int
    replacements_left: int
    expected: int = 0
    """How many rollouts were begun, or will be."""
    taken: list[Trajectory] = field(factory=list)


class Run:
    """Trajectories of a pool as they finish. Iterate it, await it, or enter it so that leaving ends what is left.

    `drain` lets what has begun go on to its end, `cancel` does not.
    """

    def __init__(self, pool: "Pool", source: Source) -> None:
        self._pool = pool
        self._source = source
        self._groups: dict[str, _Group] = {}
        self._scope = anyio.CancelScope()
        self._taking = anyio.CancelScope()
        self._exhausted = False
        self._receive: MemoryObjectReceiveStream[Trajectory] | None = None
        self._ended = anyio.Event()
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
        with anyio.CancelScope(shield=True):  # bounded: each rollout ends within its grace
            await self._ended.wait()

    def cancel(self) -> None:
        """Cancel what is left; trajectories that nobody took are in the sink."""
        self._scope.cancel()
        self._stream().close()

    def drain(self) -> None:
        """Take no more tasks and begin no more of their rollouts: what has begun ends as it would, then the iteration.

        A group that has begun keeps only the rollouts that have begun too; a later run with the same sink makes the
        others. A replacement stands in for a rollout that has begun, so it is still made.
        """
        self._taking.cancel()

    @property
    def exhausted(self) -> bool:
        """Whether every task of the source was taken and every rollout of it begun; False after a `drain` before."""
        return self._exhausted

    async def groups(self) -> AsyncIterator[tuple[Trajectory, ...]]:
        """All rollouts of a task together, replacements included, as groups complete; instead of iterating the run.

        A group that was partly sealed by an earlier run holds the rest of it, and one that was cut short by `drain`
        what had begun; those come last.
        """
        async for trajectory in self:
            group = self._groups[trajectory.task_id]
            group.taken.append(trajectory)
            if len(group.taken) == group.expected:
                del self._groups[trajectory.task_id]
                yield tuple(group.taken)
        for group in list(self._groups.values()):
            if group.taken:
                yield tuple(group.taken)

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
            self._ended.set()

    async def _feed_all(self, send: MemoryObjectSendStream[Trajectory]) -> None:
        async with anyio.create_task_group() as rollouts, self._source as source:
            try:
                with self._taking:
                    await self._take_all(rollouts, source, send)
            except Exception as error:  # what runs goes on; the consumer hears of it at the end
                self._error = error

    async def _take_all(self, rollouts: TaskGroup, source: Source, send: MemoryObjectSendStream[Trajectory]) -> None:
        sealed, seen = self._pool.sealed(), set[str]()
        while not self._taking.cancel_called:  # asked here, too: a list gives its tasks without an await
            try:
                task = await anext(source)
            except StopAsyncIteration:
                self._exhausted = True
                return
            if task.id in seen:
                raise ConfigError(
                    f"two tasks of one run have the id {task.id!r}: ids name groups and rollouts, make them unique"
                )
            seen.add(task.id)
            await self._feed_group(rollouts, send, task, sealed)

    async def _feed_group(
        self,
        rollouts: TaskGroup,
        send: MemoryObjectSendStream[Trajectory],
        task: Task,
        sealed: Container[tuple[str, int]],
    ) -> None:
        size = self._pool.group_size
        replaced = self._pool.replaced(task.id)
        through = all((task.id, index) in sealed for index in range(size))
        if through and not replaced and not self._has_begun(task, size):
            return  # no agent is made for a task that is done
        agent = self._pool.agent_of(task)
        begun = max(self._begun_replacements(task, agent), min(replaced, agent.outcomes.replacements))
        indices = [index for index in range(size + begun) if (task.id, index) not in sealed]
        if not indices:
            return
        group = _Group(agent, size + begun, agent.outcomes.replacements - begun, len(indices))
        self._groups[task.id] = group
        for index in indices:
            self._pool.claim(task.id, index)
            try:
                await self._pool.live.acquire(task.id)
            except BaseException:
                self._pool.release(task.id, index)
                raise
            if self._taking.cancel_called:  # in the same turn of the loop in which the permit came
                self._pool.live.release()
                self._pool.release(task.id, index)
                return
            rollouts.start_soon(self._one, rollouts, send, task, index, group, None)
            await anyio.lowlevel.checkpoint()  # thousands at once must not hold up those that run

    def _begun_replacements(self, task: Task, agent: Agent) -> int:
        """How many replacements an earlier run with the same sink has begun, or was about to: their indices are taken.

        They are numbered as they fall due, and begin in any order.
        """
        policy, size = agent.outcomes, self._pool.group_size
        if Outcome.REPLACE in {*policy.exits.values(), *policy.blames.values(), policy.ungraded, policy.exhausted}:
            for begun in range(policy.replacements, 0, -1):
                if self._has_begun(task, size + begun - 1):
                    return begun
        return 0

    def _has_begun(self, task: Task, index: int) -> bool:
        """Whether an earlier run with the same sink has begun this rollout."""
        return self._pool.actor(self._pool.agent, task, index).key.attempt > 0

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
            trajectory = await self._pool.actor(group.agent, task, index, replaces=replaces).run()
            if trajectory.outcome is Outcome.REPLACE and group.replacements_left:
                group.replacements_left -= 1
                group.expected += 1
                rollouts.start_soon(self._replace, rollouts, send, task, group, index)
            with suppress(anyio.BrokenResourceError):  # the consumer has left; the trajectory is in the sink
                await send.send(trajectory)
        finally:
            self._pool.release(task.id, index)
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
        self._pool.claim(task.id, index)
        await self._pool.live.acquire(task.id)
        await self._one(rollouts, send, task, index, group, replaces)
