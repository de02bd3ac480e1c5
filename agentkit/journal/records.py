"""What a sink is told, as values, and encoded for the file."""

from collections.abc import Sequence
from typing import TypeAlias

from attrs import frozen

from agentkit.journal.codec import Codec, Encoded, Text
from agentkit.protocols import ChainDelta, RolloutKey, Trajectory, Turn


@frozen
class Begin:
    """An attempt starts."""

    key: RolloutKey


@frozen
class Append:
    """A turn is complete."""

    key: RolloutKey
    turn: Turn
    deltas: tuple[ChainDelta, ...]


@frozen
class Seal:
    """A rollout has ended."""

    trajectory: Trajectory


Operation: TypeAlias = Begin | Append | Seal


_NOTHING = Encoded("", (), b"")


@frozen
class Prepared:
    """An operation with all that is slow to compute: nothing but SQL is left to do."""

    operation: Operation
    encoded: Encoded = _NOTHING
    pieces: tuple[Text, ...] = ()
    """Per delta of an append, the record of its piece; its tokens are `encoded.blobs`."""
    task_digest: bytes | None = None
    """Of a seal, what was asked; None where the trajectory does not hold its task."""

    @property
    def key(self) -> RolloutKey:
        """The rollout and the attempt."""
        operation = self.operation
        return operation.trajectory.key if isinstance(operation, Seal) else operation.key


def prepare(operation: Operation, codec: Codec) -> Prepared:
    """`operation`, encoded."""
    if isinstance(operation, Begin):
        return Prepared(operation)
    if isinstance(operation, Seal):
        trajectory = operation.trajectory
        digest = codec.task_digest(trajectory.task) if trajectory.task.id == trajectory.task_id else None
        return Prepared(operation, codec.encode_trajectory(trajectory), task_digest=digest)
    pieces = tuple(codec.encode_piece(delta.piece) for delta in operation.deltas)
    return Prepared(operation, codec.encode_turn(operation.turn, operation.deltas), pieces)


def token_counts(trajectories: Sequence[Trajectory]) -> tuple[int, int]:
    """(tokens, sampled tokens) of all chains."""
    chains = [chain for trajectory in trajectories for chain in trajectory.chains]
    return sum(map(len, chains)), sum(chain.mask_bytes.count(1) for chain in chains)
