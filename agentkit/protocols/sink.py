"""Where records go."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from agentkit.protocols.chains import ChainDelta
from agentkit.protocols.trajectory import RolloutKey, Trajectory, Turn


@runtime_checkable
class Sink(Protocol):
    """What a pool writes to. Each method returns once the record is durable."""

    async def begin(self, key: RolloutKey, /) -> None:
        """An attempt at a rollout starts; a later attempt of the same rollout supersedes the earlier ones."""
        ...

    async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
        """A turn is complete; `deltas` are the tokens added since the previous `append` of this attempt."""
        ...

    async def seal(self, trajectory: Trajectory, /) -> None:
        """The rollout has ended. Exactly once per (task, index)."""
        ...
