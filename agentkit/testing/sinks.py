"""Sinks in memory that an interrupted run can go on from, and what stands for the death of the host process."""

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from typing import Protocol

from agentkit.errors import AgentkitError, InvariantError
from agentkit.protocols import ChainDelta, RolloutKey, Sink, Trajectory, Turn
from agentkit.testing.fakes import MemorySink


class ResumableSink(MemorySink):
    """A `MemorySink` that knows what is sealed, as a journal does: a later pool goes on from it.

    It refuses what a journal refuses: a second trajectory of a rollout, and an attempt that has begun before. The
    attempts `begun_before` stand for an earlier run that did not come to their ends.
    """

    def __init__(
        self, pause: Callable[[], Awaitable[object]] | None = None, *, begun_before: Iterable[RolloutKey] = ()
    ) -> None:
        super().__init__(pause)
        self._sealed: set[tuple[str, int]] = set()
        self._next = {(key.task_id, key.index): key.attempt + 1 for key in begun_before}

    async def begin(self, key: RolloutKey, /) -> None:
        """Note the attempt.

        Raises:
            InvariantError: the rollout is sealed, or this attempt or a later one has begun.
        Cancellation: it is noted.
        """
        if (key.task_id, key.index) in self._sealed:
            raise InvariantError(f"{key} begins again, and is sealed")
        if key.attempt < self.next_attempt(key.task_id, key.index):
            raise InvariantError(f"attempt {key.attempt} of {key} has begun before")
        self._next[key.task_id, key.index] = key.attempt + 1
        await super().begin(key)

    async def seal(self, trajectory: Trajectory, /) -> None:
        """Note the trajectory.

        Raises:
            InvariantError: the rollout is sealed.
        Cancellation: it is noted.
        """
        rollout = trajectory.task_id, trajectory.key.index
        if rollout in self._sealed:
            raise InvariantError(f"{trajectory.key} is sealed twice")
        self._sealed.add(rollout)
        await super().seal(trajectory)

    def sealed(self) -> set[tuple[str, int]]:
        """(task_id, index) of every rollout that is sealed."""
        return set(self._sealed)

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """The number for the next attempt at a rollout."""
        return self._next.get((task_id, index), 0)


class Resumable(Sink, Protocol):
    """A sink that an interrupted run can go on from."""

    def sealed(self) -> Container[tuple[str, int]]:
        """The (task id, index) pairs that are sealed."""
        ...

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """The number of the next attempt at a rollout."""
        ...


class HostDied(AgentkitError):
    """The host process is dead: nothing it does leaves a trace any more."""


class MortalSink:
    """Hands everything on to `inner` until the process dies, which is after its record number `dies_after`.

    What a process leaves behind when it is killed is what its sink has committed, so a death between two records stands
    for a death at any moment. The record after which it dies is committed, and its writer never hears of that.
    """

    def __init__(self, inner: Resumable, dies_after: int | None) -> None:
        self._inner = inner
        self._dies_after = dies_after
        self._records = 0
        self.dead = False

    async def begin(self, key: RolloutKey, /) -> None:
        """As the inner sink. Cancellation: as the inner sink."""
        await self._while_alive(lambda: self._inner.begin(key))

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        """As the inner sink. Cancellation: as the inner sink."""
        await self._while_alive(lambda: self._inner.append(key, turn, deltas))

    async def seal(self, trajectory: Trajectory, /) -> None:
        """As the inner sink. Cancellation: as the inner sink."""
        await self._while_alive(lambda: self._inner.seal(trajectory))

    def sealed(self) -> Container[tuple[str, int]]:
        """As the inner sink."""
        return self._inner.sealed()

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """As the inner sink."""
        return self._inner.next_attempt(task_id, index)

    async def _while_alive(self, write: Callable[[], Awaitable[None]]) -> None:
        if self.dead:
            raise HostDied("the host process is dead")
        self._records += 1
        dies = self._dies_after is not None and self._records >= self._dies_after
        if dies:
            self.dead = True
        await write()
        if self.dead:
            raise HostDied("the host process has died")
