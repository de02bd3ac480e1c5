"""What the page on testing shows."""


async def main() -> None:
    # --8<-- [start:first]
    import anyio

    import agentkit as ak
    from agentkit.models import ScriptedModel
    from agentkit.testing import FakeTool, MemorySink, World

    CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'

    async def search(arguments: object) -> str:
        await anyio.sleep(25)
        return "in the attic"

    world, sink = World(), MemorySink()
    agent = ak.Agent(
        ScriptedModel([CALL, "It is in the attic."]),
        env=world,
        tools=[FakeTool("search", search)],
        budget=ak.Budget(tool_s=30),
    )
    async with ak.Pool(agent, group_size=2, sink=sink) as pool:
        trajectories = await pool.run([ak.Task("key", "Where is the key?")])

    assert [t.exit_reason for t in trajectories] == [ak.ExitReason.FINISHED] * 2
    assert [t.turns[0].observations[0].content for t in trajectories] == ["in the attic"] * 2
    assert [round(t.timings.total_s) for t in trajectories] == [25, 25]  # virtual seconds, exact
    assert len(sink.trajectories) == 2
    assert not world.open
    # --8<-- [end:first]

    # --8<-- [start:failing]
    from agentkit.testing import failing_model

    model = ScriptedModel(["It is in the attic."], chunk_tokens=2)
    overloaded = failing_model(model, ak.ModelError("503", retryable=True))
    trajectory = await ak.Agent(overloaded).run("Where is the key?")
    assert trajectory.exit_reason is ak.ExitReason.FINISHED  # tried again, since nothing had been sampled

    silent = failing_model(model, after_chunks=1)
    trajectory = await ak.Agent(silent, budget=ak.Budget(generation_s=60)).run("Where is the key?")
    assert trajectory.exit_reason is ak.ExitReason.GENERATION_TIMEOUT
    assert trajectory.turns[0].stop - trajectory.turns[0].start == 2  # what was sampled is kept
    # --8<-- [end:failing]

    # --8<-- [start:plan]
    from agentkit.testing import FaultPlan, faulty_tool

    flaky = faulty_tool(FakeTool("search", search), FaultPlan(seed=3, tool_error=0.5))
    agent_of_flaky = ak.Agent(ScriptedModel([CALL, CALL, CALL, "done"]), tools=[flaky])
    trajectory = await agent_of_flaky.run("Where is the key?")
    seen = [turn.observations[0].status for turn in trajectory.turns[:3]]
    assert set(seen) == {ak.ObservationStatus.OK, ak.ObservationStatus.ERROR}

    again = await agent_of_flaky.run("Where is the key?")
    assert [turn.observations[0].status for turn in again.turns[:3]] == seen
    # --8<-- [end:plan]

    # --8<-- [start:simulator]
    from agentkit.testing import Simulation

    plan = FaultPlan(seed=7, stall=0.05, partial_stream=0.05, hung_tool=0.1, dead_sandbox=0.05, deaths=1)
    tasks = [ak.Task(f"key-{n}", "Where is the key?") for n in range(10)]
    report = await Simulation(plan, agent=agent, tasks=tasks, group_size=4).run()

    report.check()
    assert report.sealed == 40
    assert report.left == ()
    assert report.sittings == 2  # one host died, another went on
    assert sum(report.counts.values()) == 40  # by exit reason
    # --8<-- [end:simulator]

    # --8<-- [start:logs]
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from agentkit.logs import configure

    with TemporaryDirectory() as folder:
        with configure(level="INFO", to=Path(folder, "run.jsonl"), json=True, per_rollout=Path(folder, "rollouts")):
            await agent.run(ak.Task("key", "Where is the key?"))
        told = Path(folder, "rollouts", "key#0.0.log").read_text()
    assert "user: Where is the key?" in told
    assert "search (ok): in the attic" in told
    assert "ends: finished" in told
    # --8<-- [end:logs]


if __name__ == "__main__":
    from anyio import run

    from agentkit.testing import virtual_asyncio

    name, options = virtual_asyncio()
    run(main, backend=name, backend_options=options)
