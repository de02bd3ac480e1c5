"""Limits that hold: a tool that cannot be cancelled, a deadline in mid-generation, and limits of a single task.

A script stands in for the policy.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel

# --8<-- [start:tool]
CALL = '<tool_call>\n{"name": "stubborn", "arguments": {}}\n</tool_call>'


@ak.tool
async def stubborn() -> str:
    """Waits a minute, and cannot be cancelled."""
    with anyio.CancelScope(shield=True):
        await anyio.sleep(60)
    return "too late"


async def a_stubborn_tool() -> None:
    """The call gets `tool_s`, then `grace_s` to end, then it is closed. The rollout goes on, and names it."""
    budget = ak.Budget(tool_s=0.5, grace_s=0.2)
    began = anyio.current_time()
    trajectory = await ak.Agent(ScriptedModel([CALL, "I give up."]), tools=[stubborn], budget=budget).run("Go.")
    took = anyio.current_time() - began
    print("tool:", trajectory.exit_reason, f"after {took:.1f} s; stuck: {trajectory.stuck};", end=" ")
    print("the policy read:", trajectory.turns[0].observations[0].content)


# --8<-- [end:tool]


# --8<-- [start:deadline]
async def a_deadline_in_mid_generation() -> None:
    """Tokens that were sampled before the deadline are in the trajectory, and the reward is still asked."""

    async def length(trajectory: ak.Trajectory, env: None) -> float:
        return len(trajectory.turns[0].action.content)

    model = ScriptedModel(["word " * 100], chunk_tokens=1, token_s=0.05)
    trajectory = await ak.Agent(model, reward=length, budget=ak.Budget(trajectory_s=1)).run("Go.")
    (turn,) = trajectory.turns
    logprobs = trajectory.chains[turn.chain].logprobs[turn.start : turn.stop]
    print("deadline:", trajectory.exit_reason, f"with {len(logprobs)} tokens kept, score {trajectory.score}")


# --8<-- [end:deadline]


async def limits_of_one_task() -> None:
    """A task overrides fields of the agent's budget; a misspelt one is an error that names the nearest."""

    @ak.tool
    async def look() -> str:
        """Look around."""
        return "nothing new"

    # --8<-- [start:task]
    agent = ak.Agent(ScriptedModel([CALL.replace("stubborn", "look")] * 9), tools=[look])
    trajectory = await agent.run(ak.Task("short", "Go.", budget={"max_turns": 2}))
    print("task:", trajectory.exit_reason, "after", len(trajectory.turns), "turns")
    try:
        ak.Budget().override({"max_turn": 2})
    except ak.ConfigError as error:
        print("typo:", error)
    # --8<-- [end:task]


async def main() -> None:
    await a_stubborn_tool()
    await a_deadline_in_mid_generation()
    await limits_of_one_task()


if __name__ == "__main__":
    anyio.run(main)
