"""How to test an agent: on virtual time, where an hour costs a millisecond, and on both event loops.

Copy it beside your agent. It needs `pip install -e '.[testing]'`, and runs as `pytest test_my_agent.py`.
"""

# --8<-- [start:loops]
import anyio
import pytest

import agentkit as ak
from agentkit.models import ScriptedModel
from agentkit.testing import FakeTool, MemorySink, World, swallow_cancellation, virtual_asyncio, virtual_trio

pytestmark = pytest.mark.anyio

CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'


@pytest.fixture(params=[virtual_asyncio, virtual_trio], ids=["asyncio", "trio"])
def anyio_backend(request):
    return request.param()


# --8<-- [end:loops]


# --8<-- [start:time]
async def patient(rollout: ak.Rollout) -> None:
    """The loop under test: waits an hour before it asks again."""
    async for action in rollout:
        result = await rollout.act(action)
        if not result.done:
            await anyio.sleep(3600)


async def test_it_waits_an_hour_between_turns() -> None:
    async def search(arguments: object) -> str:
        return "nothing yet"

    agent = ak.Agent(
        ScriptedModel([CALL, CALL, "found"]),
        tools=[FakeTool("search", search)],
        loop=patient,
        budget=ak.Budget(trajectory_s=10_000),
    )
    trajectory = await agent.run("Find it.")
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.timings.total_s == pytest.approx(7200)


# --8<-- [end:time]


# --8<-- [start:hang]
async def test_a_tool_that_never_ends_costs_its_limit_and_no_more() -> None:
    world, sink = World(), MemorySink()
    agent = ak.Agent(
        ScriptedModel([CALL, "gave up"]),
        env=world,
        tools=[FakeTool("search", lambda arguments: anyio.sleep_forever())],
        budget=ak.Budget(tool_s=30),
    )
    async with ak.Pool(agent, group_size=3, sink=sink) as pool:
        trajectories = await pool.run([ak.Task("t", "Find it.")])
    assert [t.turns[0].observations[0].content for t in trajectories] == ["Timed out after 30 s."] * 3
    assert len(sink.trajectories) == 3
    assert (world.made, world.closed, len(world.open)) == (3, 3, 0), "every env was closed"


# --8<-- [end:hang]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_even_code_that_swallows_its_cancellation_is_ended_and_named() -> None:
    agent = ak.Agent(
        ScriptedModel([CALL, "gave up"]),
        tools=[FakeTool("search", lambda arguments: swallow_cancellation())],
        budget=ak.Budget(tool_s=30, grace_s=5),
    )
    trajectory = await agent.run("Find it.")
    assert trajectory.exit_reason is ak.ExitReason.FINISHED
    assert trajectory.stuck == ("search",)
