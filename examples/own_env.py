"""An env of one's own: any object with `start` and `close`. With `step` it answers actions that call no tool.

A script stands in for the policy: it counts well on one task, and skips a number on the other.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel


# --8<-- [start:env]
class Counting:
    """Asks the policy to count, one number a turn. One object is made for each rollout, so it may hold state."""

    async def start(self, task: ak.Task) -> list[ak.Message]:
        """What opens the conversation; `task.data` is for the env and the reward, the policy never sees it."""
        self.goal = int(str(task.data["n"]))
        self.reached = 0
        return [ak.user(f"Count to {self.goal}, one number a turn. Start with 1.")]

    async def step(self, action: ak.Action) -> ak.Observation:
        """What the action caused; `done` ends the rollout as `finished`."""
        if action.content.strip() != str(self.reached + 1):
            return ak.Observation(f"{action.content!r} does not follow {self.reached}.", done=True)
        self.reached += 1
        return ak.Observation("Go on.", done=self.reached == self.goal)

    async def close(self) -> None:
        """Called exactly once, also where `start` failed half way."""


# --8<-- [end:env]


# --8<-- [start:reward]
async def share_counted(trajectory: ak.Trajectory, env: Counting) -> float:
    """The reward is asked while the env is still open."""
    return env.reached / env.goal


# --8<-- [end:reward]


# --8<-- [start:run]
agent = ak.Agent(ScriptedModel(["1", "2", "3", "5"]), env=Counting, reward=share_counted)


async def main() -> None:
    async with ak.Pool(agent) as pool:
        for trajectory in await pool.run([ak.Task("to-3", data={"n": 3}), ak.Task("to-4", data={"n": 4})]):
            last = trajectory.turns[-1].observations[0].content
            print(trajectory.task_id, trajectory.exit_reason, trajectory.score, repr(last))


# --8<-- [end:run]


if __name__ == "__main__":
    anyio.run(main)
