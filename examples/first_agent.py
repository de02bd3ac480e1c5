"""A tool, a reward and a pool. `ScriptedModel` stands in for a policy: it says what its script says, in real tokens."""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.rewards import exact_match


@ak.tool
async def population(city: str) -> str:
    """Population of a city, in millions.

    Args:
        city: Its English name.
    """
    return {"Lima": "10.4", "Oslo": "0.7"}.get(city, "unknown")


CALL = '<tool_call>\n{"name": "population", "arguments": {"city": "Lima"}}\n</tool_call>'
model = ScriptedModel([f"I will look it up. {CALL}", "10.4"])  # any object of the right shape takes its place

agent = ak.Agent(model, tools=[population], reward=exact_match(), budget=ak.Budget(trajectory_s=60, max_turns=5))
tasks = [ak.Task("lima", "How many million people live in Lima?", data={"answer": "10.4"})]


async def main() -> None:
    async with ak.Pool(agent, max_rollouts=64, group_size=4) as pool:
        async for trajectory in pool.run(tasks):  # as they finish
            sampled = sum(trajectory.chains[0].response_mask)
            print(trajectory.exit_reason, trajectory.score, sampled, "tokens sampled")


if __name__ == "__main__":
    anyio.run(main)
