"""A sink that keeps secrets out of what errors say."""

from collections.abc import Callable, Container, Sequence
from typing import Protocol, runtime_checkable

from attrs import evolve

from agentkit.protocols import ChainDelta, RolloutKey, Sink, Trajectory, Turn


@runtime_checkable
class _Resumable(Protocol):
    def sealed(self) -> Container[tuple[str, int]]: ...

    def next_attempt(self, task_id: str, index: int, /) -> int: ...


class RedactingSink:
    """Hands everything on to `sink`, with `redactor` applied to the errors of sealed trajectories.

    These are `error`, those of attempts and grades, and the names of what was stuck, of sub-agents too. Messages,
    actions, observations and tokens are a record of what the policy saw and sampled, and stay exact.
    """

    def __init__(self, sink: Sink, redactor: Callable[[str], str]) -> None:
        self._sink = sink
        self._redactor = redactor

    async def begin(self, key: RolloutKey, /) -> None:
        """As the sink. Cancellation: as the sink."""
        await self._sink.begin(key)

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        """As the sink. Cancellation: as the sink."""
        await self._sink.append(key, turn, deltas)

    async def seal(self, trajectory: Trajectory, /) -> None:
        """As the sink, without the secrets in errors. Cancellation: as the sink."""
        await self._sink.seal(without_secrets(trajectory, self._redactor))

    def sealed(self) -> Container[tuple[str, int]]:
        """As the sink; nothing where it cannot tell."""
        return self._sink.sealed() if isinstance(self._sink, _Resumable) else ()

    def next_attempt(self, task_id: str, index: int, /) -> int:
        """As the sink; 0 where it cannot tell."""
        return self._sink.next_attempt(task_id, index) if isinstance(self._sink, _Resumable) else 0


def without_secrets(trajectory: Trajectory, redactor: Callable[[str], str]) -> Trajectory:
    """The trajectory with `redactor` applied to what its errors say."""
    grade = trajectory.grade
    return evolve(
        trajectory,
        error=_without(trajectory.error, redactor),
        grade=None if grade is None else evolve(grade, error=_without(grade.error, redactor)),
        attempts=tuple(evolve(attempt, error=_without(attempt.error, redactor)) for attempt in trajectory.attempts),
        stuck=tuple(map(redactor, trajectory.stuck)),
        children=tuple(without_secrets(child, redactor) for child in trajectory.children),
    )


def _without(error: str | None, redactor: Callable[[str], str]) -> str | None:
    return None if error is None else redactor(error)
