"""The reward of the chaos test, which crashes where it is told to, and a tool that takes the sandbox away."""

from typing import Any

from agentkit import Observation, Trajectory
from agentkit.protocols import ToolContext, ToolSpec


async def judge(trajectory: Trajectory, env: object) -> float:
    """1 for whoever finished."""
    if "crash" in trajectory.turns[-1].action.text:
        raise RuntimeError("planted: the grader fell over")
    return 1.0 if trajectory.exit_reason == "finished" else 0.25


class Unplug:
    """Ends the sandbox behind the back of its env, as its host does when it goes down."""

    spec = ToolSpec("unplug", "End the sandbox.", {"type": "object", "properties": {}})

    async def call(self, arguments: object, context: ToolContext) -> Observation:
        env: Any = context.env
        await env.sandbox.close()
        return Observation((await env.run("true")).output)
