"""Plan first, then execute step by step (Wang et al. 2023, arXiv 2305.04091), as a loop from public pieces.

A script stands in for the policy.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel


# --8<-- [start:loop]
async def plan_execute(rollout: ak.Rollout) -> None:
    """A plan, then each step with as many tool calls as it takes, then the answer. All of it is one trajectory."""
    rollout.observe("First write a plan: one step a line, and nothing else.")
    plan = await rollout.sample()
    for step in filter(None, map(str.strip, plan.content.splitlines())):
        rollout.observe(f"Now do this step, and say what came of it: {step}")
        async for action in rollout:
            if not action.attempts:
                break  # the step has its result
            await rollout.act(action)
        if rollout.ended:  # a limit was reached; the trajectory says which
            return
    rollout.observe("All steps are done. Give the answer, and nothing else.")
    await rollout.sample()


# --8<-- [end:loop]


@ak.tool
async def population(city: str) -> float:
    """Population of a city, in millions."""
    return {"Lima": 10.4, "Oslo": 0.7}[city]


def call(city: str) -> str:
    return f'<tool_call>\n{{"name": "population", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


PLAN = "Look up Lima.\nLook up Oslo.\nSubtract."
SCRIPT = [PLAN, call("Lima"), "Lima has 10.4.", call("Oslo"), "Oslo has 0.7.", "10.4 - 0.7 = 9.7", "9.7"]
agent = ak.Agent(ScriptedModel(SCRIPT), tools=[population], loop=plan_execute)


async def main() -> None:
    trajectory = await agent.run("How many million more people live in Lima than in Oslo?")
    for turn in trajectory.turns:
        print(turn.index, repr(turn.action.content), *[f"-> {seen.content}" for seen in turn.observations])
    print(trajectory.exit_reason, len(trajectory.chains), "chain")


if __name__ == "__main__":
    anyio.run(main)
