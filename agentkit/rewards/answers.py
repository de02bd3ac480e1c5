"""Rewards that look at the answer alone."""

from agentkit.protocols.reward import Reward
from agentkit.protocols.trajectory import Trajectory


def exact_match(expected_key: str = "answer") -> Reward[object]:
    """1.0 where the answer is, but for surrounding blanks, the text in the task's data under `expected_key`.

    The answer is what the `finish` tool was given, else the content of the last turn of the conversation as it ended. A
    trajectory without the key is a fault of whoever made the task: the reward raises, and the grade is an error.
    """

    async def reward(trajectory: Trajectory, env: object, /) -> float:
        if expected_key not in trajectory.task.data:
            raise ValueError(f"the data of task {trajectory.task_id!r} has no {expected_key!r} to compare with")
        return float(answer_of(trajectory).strip() == str(trajectory.task.data[expected_key]).strip())

    return reward


def answer_of(trajectory: Trajectory) -> str:
    """What the policy gave as its final answer; empty where it gave none."""
    path = trajectory.path()
    if not path:
        return ""
    last = path[-1]
    for observation in last.observations:
        if observation.done and "answer" in observation.metadata:
            return str(observation.metadata["answer"])
    return last.action.content
