"""Tools that end a rollout as `finished`."""

from agentkit.protocols.actions import Observation
from agentkit.tools.function import tool


@tool
async def finish(answer: str) -> Observation:
    """Give the final answer and end the task.

    Args:
        answer: The final answer, in full.
    """
    return Observation(answer, done=True, metadata={"answer": answer})


@tool
async def submit() -> Observation:
    """Hand in the work as it is now and end the task."""
    return Observation("Submitted.", done=True, metadata={"submitted": True})
