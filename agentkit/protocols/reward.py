"""How a rollout is judged."""

from typing import Protocol, TypeVar

from agentkit.protocols.trajectory import Score, Trajectory

EnvT_contra = TypeVar("EnvT_contra", contravariant=True)


class Reward(Protocol[EnvT_contra]):
    """Any async callable that judges a whole trajectory inside the still-open env."""

    async def __call__(self, trajectory: Trajectory, env: EnvT_contra, /) -> float | Score:
        """The score of `trajectory`, whose grade is still None.

        What it raises becomes a grade with status `error` and blame `grader`, never a zero.
        """
        ...
