"""The reward of the chaos test: it crashes where it is told to."""

from agentkit import Trajectory


async def judge(trajectory: Trajectory, env: object) -> float:
    """1 for whoever finished."""
    if "crash" in trajectory.turns[-1].action.text:
        raise RuntimeError("planted: the grader fell over")
    return 1.0 if trajectory.exit_reason == "finished" else 0.25
