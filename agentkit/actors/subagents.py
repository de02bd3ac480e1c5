"""Sub-agents as tools."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agentkit.actors.agent import Agent
from agentkit.errors import ToolError
from agentkit.protocols import ExitReason, Json, Observation, Task, ToolContext, ToolSpec, Trajectory

if TYPE_CHECKING:
    from agentkit.actors.rollout import Rollout


def last_words(trajectory: Trajectory) -> str:
    """What a sub-agent said last, or why it did not finish."""
    if trajectory.exit_reason is not ExitReason.FINISHED:
        return f"The sub-agent did not finish: {trajectory.exit_reason}."
    path = trajectory.path()
    return path[-1].action.content if path else ""


class SubAgent:
    """A tool that hands a prompt to another agent, within what remains of the caller's time, and reports its answer."""

    def __init__(
        self,
        agent: Agent,
        *,
        description: str,
        parallel: bool = True,
        report: Callable[[Trajectory], str] = last_words,
    ) -> None:
        self._agent = agent
        self._report = report
        self.spec = ToolSpec(
            agent.name,
            description,
            {
                "type": "object",
                "properties": {"prompt": {"type": "string", "description": "What the sub-agent is asked to do."}},
                "required": ["prompt"],
            },
            parallel=parallel,
        )

    async def call(self, arguments: Mapping[str, Json], context: ToolContext, /) -> Observation:
        """Refuses: outside a rollout there is no budget to inherit."""
        raise ToolError(f"sub-agent {self.spec.name!r} can only be called within a rollout")

    async def call_within(self, arguments: Mapping[str, Json], rollout: "Rollout", /) -> Observation:
        """Run the sub-agent; its trajectory becomes a child of the rollout's."""
        prompt = str(arguments["prompt"])
        trajectory = await rollout.child(self._agent, Task(f"{rollout.key}/{self.spec.name}", prompt))
        return Observation(self._report(trajectory))
