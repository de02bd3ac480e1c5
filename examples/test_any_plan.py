"""An agent under any plan of faults: hypothesis looks for one under which it does not hold.

Copy it beside your agent. It needs `pip install -e '.[testing]'`, and runs as `pytest test_any_plan.py`.
"""

import anyio
from hypothesis import given, settings

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.testing import FaultPlan, simulate, strategies

CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'


@ak.tool
async def search() -> str:
    """Search the house."""
    await anyio.sleep(2)
    return "in the attic"


agent = ak.Agent(ScriptedModel([CALL, "It is in the attic."]), tools=[search])
tasks = [ak.Task(f"key-{number}", "Where is the key?") for number in range(5)]


# --8<-- [start:any]
@settings(max_examples=25, deadline=None)
@given(strategies.fault_plans(0.2, deaths=2))
def test_my_agent_under_any_plan(plan: FaultPlan) -> None:
    simulate(plan, agent=agent, tasks=tasks).check()


# --8<-- [end:any]
