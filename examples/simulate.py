"""An agent under faults: servers that break off, sandboxes that die, tools that hang, a host that is killed.

A plan is a seed and rates. The production loop runs the agent on virtual time, hundreds of rollouts in a second or two,
and the report says what did not hold. A rollout that went wrong can be run again alone: it meets the same faults.
"""

import anyio

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.rewards import exact_match
from agentkit.testing import FaultPlan, Simulation, virtual_asyncio


@ak.tool
async def population(city: str) -> str:
    """Population of a city, in millions."""
    await anyio.sleep(2)
    return {"Lima": "10.4", "Oslo": "0.7"}.get(city, "unknown")


CALL = '<tool_call>\n{"name": "population", "arguments": {"city": "Lima"}}\n</tool_call>'
agent = ak.Agent(
    ScriptedModel([f"I will look it up. {CALL}", "10.4"], token_s=0.02),
    tools=[population],
    reward=exact_match(),
    budget=ak.Budget(trajectory_s=300, generation_s=60, tool_s=30, reward_s=30, grace_s=5, max_turns=5),
)
tasks = [ak.Task(f"lima-{n}", "How many million people live in Lima?", data={"answer": "10.4"}) for n in range(25)]
plan = FaultPlan(seed=7, server_error=0.1, partial_stream=0.1, stall=0.05, hung_tool=0.1, failed_reward=0.1, deaths=1)


async def main() -> None:
    report = await Simulation(plan, agent=agent, tasks=tasks, group_size=4).run()
    report.check()  # raises where anything is lost, sealed twice, unsound, too late or left behind
    print(report.sealed, "sealed,", report.sittings, "hosts,", round(report.seconds), "virtual seconds")
    print({str(reason): count for reason, count in report.counts.items()})
    print({fault: count for fault, count in sorted(report.struck.items()) if count})


if __name__ == "__main__":
    name, options = virtual_asyncio()
    anyio.run(main, backend=name, backend_options=options)
