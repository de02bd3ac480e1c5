"""The return of an episode as a reward."""

from agentkit.protocols.trajectory import Score, Trajectory, Turn


async def episode_return(trajectory: Trajectory, env: object) -> Score:
    """The sum of the rewards that the env gave, and as parts those of each turn.

    They are read from the observations' metadata, as `GymnasiumEnv` and `OpenEnv` write them. Cancellation: nothing is
    awaited.
    """
    turns = tuple(map(_reward_of, trajectory.turns))
    observations = [each for turn in trajectory.turns for each in turn.observations]
    steps = sum("terminated" in each.metadata for each in observations)
    return Score(sum(turns), turns=turns, metrics={"steps": float(steps)})


def _reward_of(turn: Turn) -> float:
    found = (observation.metadata.get("reward") for observation in turn.observations)
    return sum(float(reward) for reward in found if isinstance(reward, int | float))
