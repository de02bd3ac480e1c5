"""Rollouts under fault plans: each is sealed once and sound, nothing is left, and any of them can be seen again alone.

Seeds are printed; AGENTKIT_SEED chooses another.
"""

import os
import time
from array import array
from collections import Counter
from pathlib import Path

import anyio
import attrs
import pytest
from hypothesis import given, settings

import agentkit as ak
from agentkit.errors import ConfigError, InvariantError
from agentkit.journal import JournalReader
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import RolloutKey, SpanKind
from agentkit.testing import (
    FakeTool,
    FaultPlan,
    ResumableSink,
    Simulation,
    SimulationFailed,
    SimulationReport,
    Witness,
    faulty_agent,
    fingerprint,
    replay,
    simulate,
    strategies,
    virtual_asyncio,
    virtual_trio,
)
from agentkit.testing.plan import faults
from agentkit.testing.simulated import simulated_agent, simulated_task
from agentkit.testing.sinks import HostDied, MortalSink

SEED = int(os.environ.get("AGENTKIT_SEED", "7"))
LOOPS = ["asyncio", "trio"]
PLAN = FaultPlan.everything(0.03, seed=SEED)


@pytest.fixture(scope="module")
def reports() -> dict[str, SimulationReport]:
    """The same 300 rollouts on both loops."""
    return {loop: simulate(PLAN, rollouts=300, group_size=3, backend=loop) for loop in LOOPS}


@pytest.mark.parametrize("loop", LOOPS)
def test_every_rollout_is_sealed_once_and_sound_and_nothing_is_left(reports, loop: str) -> None:
    report = reports[loop]
    report.check()
    sealed = Counter((t.task_id, t.key.index) for t in report.trajectories)
    assert sealed == {(f"task-{task}", index): 1 for task in range(100) for index in range(3)}
    assert report.sealed == report.rollouts == sum(report.counts.values()) == 300
    assert report.left == report.problems == ()
    assert set(report.struck) == set(faults()), "each fault was seen"
    assert all(report.struck.values())
    assert {"finished", "generation_timeout", "format_errors"} <= set(report.counts)
    assert any(t.attempts for t in report.trajectories)
    assert report.seconds > 40
    assert (report.backend, report.sittings, report.seed) == (loop, 1, SEED)


def test_both_loops_agree_on_every_trajectory(reports) -> None:
    """Where code had to be ended by force, the order in which a loop wakes its tasks may show; else nothing may."""
    one, other = ({t.key: t for t in reports[loop].trajectories} for loop in LOOPS)
    assert set(one) == set(other)
    stuck = {key for each in (one, other) for key, trajectory in each.items() if trajectory.stuck}
    assert len(stuck) < 30
    assert [key for key in one if key not in stuck and fingerprint(one[key]) != fingerprint(other[key])] == []


async def test_code_that_ends_as_it_is_asked_is_not_called_stuck() -> None:
    async def dies(_: object) -> str:
        await anyio.sleep(1)
        raise ak.SandboxDead("gone")

    tools = [FakeTool("dies", dies, parallel=True), FakeTool("naps", lambda _: anyio.sleep(50), parallel=True)]
    script = [CALL.replace("search", "dies") + "\n" + CALL.replace("search", "naps")]
    trajectory = await ak.Agent(ScriptedModel(script), tools=tools, outcomes=ak.OutcomePolicy(retries=0)).run("Go.")
    assert trajectory.exit_reason is ak.ExitReason.ENV_DEAD
    assert trajectory.stuck == ()


@pytest.mark.parametrize("loop", LOOPS)
def test_a_rollout_alone_is_what_it_was_among_others(reports, loop: str) -> None:
    trajectories = sorted(reports["asyncio"].trajectories, key=lambda t: (-len(t.attempts), t.key.task_id))
    chosen = {t.exit_reason: t for t in reversed(trajectories)} | dict(enumerate(trajectories[:12]))
    for trajectory in chosen.values():
        alone = replay(PLAN, trajectory.task_id, trajectory.key.index, backend=loop)
        assert fingerprint(alone) == fingerprint(trajectory)
        assert alone.chains == trajectory.chains
        assert alone.timings.total_s - alone.timings.queued_s == pytest.approx(
            trajectory.timings.total_s - trajectory.timings.queued_s
        )


def test_another_seed_is_another_course() -> None:
    one, other = (simulate(FaultPlan.everything(0.05, seed=seed), rollouts=30) for seed in (1, 2))
    assert [fingerprint(t) for t in one.trajectories] != [fingerprint(t) for t in other.trajectories]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("kept", ["memory", "journal"])
def test_a_host_that_dies_is_gone_on_from(loop: str, kept: str, tmp_path: Path) -> None:
    plan = FaultPlan.everything(0.02, seed=SEED, deaths=3)
    report = simulate(
        plan, rollouts=60, group_size=2, max_rollouts=16, backend=loop, journal=tmp_path if kept == "journal" else None
    )
    report.check()
    assert report.sealed == 60
    assert report.sittings == 4
    again = [t for t in report.trajectories if t.key.attempt > len(t.attempts)]
    assert again, "what was under way when it died was begun again"
    for trajectory in again[:3]:
        first = trajectory.key.attempt - len(trajectory.attempts)
        alone = replay(plan, trajectory.task_id, trajectory.key.index, attempt=first, backend=loop)
        assert fingerprint(alone) == fingerprint(trajectory)
    if kept == "journal":
        with JournalReader.open(tmp_path) as reader:
            assert len(reader.sealed()) == 60
            assert reader.unfinished() == ()


async def test_it_runs_inside_a_test() -> None:
    report = await Simulation(FaultPlan.everything(0.1, seed=SEED), rollouts=60, group_size=2).run()
    report.check()
    assert report.sealed == 60


CALL = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'


async def search(_: object) -> str:
    await anyio.sleep(2)
    return "nothing"


@settings(max_examples=15)
@given(strategies.fault_plans(0.3, deaths=1))
def test_an_agent_of_ones_own_under_any_plan(plan: FaultPlan) -> None:
    agent = ak.Agent(
        ScriptedMessageModel([ak.Message("assistant", "", (ak.ToolCall("c", "search"),)), "done"]),
        tools=[FakeTool("search", search)],
        budget=ak.Budget(tool_s=10, generation_s=30),
    )
    report = simulate(plan, agent=agent, tasks=[ak.Task("a", "Find it."), ak.Task("b", "Find it.")], group_size=2)
    report.check()
    assert report.sealed == 4


def test_replacements_are_welcome() -> None:
    agent = attrs.evolve(
        simulated_agent(),
        outcomes=ak.OutcomePolicy(exits=dict.fromkeys(ak.ExitReason, ak.Outcome.REPLACE), replacements=1),
    )
    report = simulate(FaultPlan(), agent=agent, tasks=[simulated_task("t")], group_size=2)
    report.check()
    assert (report.rollouts, report.sealed) == (2, 3)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of group_size"):
        simulate(FaultPlan(), rollouts=10, group_size=3)
    with pytest.raises(ConfigError, match="rollouts or its tasks"):
        simulate(FaultPlan(), rollouts=10, tasks=[ak.Task("a", "b")])
    with pytest.raises(ConfigError, match="backend must be"):
        simulate(FaultPlan(), backend="uvloop")


def test_an_error_of_the_caller_is_no_death() -> None:
    tasks = [ak.Task("same", "a"), ak.Task("same", "b")]
    with pytest.raises(ConfigError, match="two tasks of one run"):
        simulate(FaultPlan(deaths=2), tasks=tasks)


def test_a_failed_check_says_how_to_see_it_again(reports) -> None:
    report = reports["trio"]
    lost = attrs.evolve(report, left=("task loop of task-3#0",), problems=())
    with pytest.raises(SimulationFailed) as raised:
        lost.check()
    assert "1 things do not hold under FaultPlan(seed=" in str(raised.value)
    assert "left behind: task loop of task-3#0" in str(raised.value)

    class Cheat(ScriptedModel):
        """Pushes around the faulty wrapper's back, as a stream that is recorded twice would."""

        async def sample_tokens(self, request, emit):
            emitted = emit.__closure__[0].cell_contents
            emitted(ak.TokenChunk([65], [-1.0]))
            return await super().sample_tokens(request, emit)

    agent = ak.Agent(Cheat(["done"]))
    plan = FaultPlan(seed=3)
    failed = simulate(plan, agent=agent, tasks=[ak.Task("lima", "Find it.")])
    with pytest.raises(SimulationFailed, match="its tokens are not those that were pushed") as raised:
        failed.check()
    assert "see it alone: replay(FaultPlan(seed=3), 'lima', 0, backend='asyncio')" in str(raised.value)


async def sound() -> tuple[ak.Trajectory, Witness]:
    witness = Witness()
    agent = faulty_agent(
        ak.Agent(ScriptedModel([CALL, "done"]), tools=[FakeTool("search", search)]), FaultPlan(), witness=witness
    )
    return await agent.run(ak.Task("t", "Find it.")), witness


async def test_a_witness_sees_what_is_wrong_with_a_trajectory() -> None:
    trajectory, witness = await sound()
    assert witness.verify(trajectory) == []
    (chain,) = trajectory.chains
    first, second = trajectory.turns
    at = first.start

    def with_chain(**changes: object) -> ak.Trajectory:
        return attrs.evolve(trajectory, chains=(attrs.evolve(chain, **changes),))

    def patched(data: bytes, byte: int, value: int) -> bytes:
        return data[:byte] + bytes([value]) + data[byte + 1 :]

    ids = array("i", chain.ids)
    ids[at], ids[at + 1] = ids[at + 1], ids[at]
    prompt = array("i", chain.ids)
    prompt[0] += 1
    spans = [span for span in chain.spans if span.kind is not SpanKind.PROMPT]
    wrongs = {
        "mask": with_chain(mask_bytes=patched(chain.mask_bytes, at, 0)),
        "do not tile": with_chain(spans=tuple(spans)),
        "spans end at": with_chain(spans=chain.spans[:-1]),
        "log-probability": with_chain(logprob_bytes=patched(chain.logprob_bytes, 0, 1)),
        "not those that were pushed": with_chain(id_bytes=ids.tobytes()),
        "not the prompt that was sent": with_chain(id_bytes=prompt.tobytes()),
        "have mask 1": attrs.evolve(trajectory, turns=(first,)),
        "in no turn": attrs.evolve(trajectory, turns=(first,)),
        "answers to": attrs.evolve(
            trajectory, turns=(attrs.evolve(first, observations=first.observations * 2), second)
        ),
    }
    for what, wrong in wrongs.items():
        assert any(what in problem for problem in witness.verify(wrong)), what


async def test_a_fingerprint_tells_trajectories_apart_but_not_their_seconds() -> None:
    trajectory, _ = await sound()
    same = attrs.evolve(
        trajectory,
        timings=ak.protocols.Timings(total_s=5),
        turns=tuple(attrs.evolve(turn, tool_s=9.0) for turn in trajectory.turns),
    )
    assert fingerprint(same) == fingerprint(trajectory)
    (chain,) = trajectory.chains
    others = [
        attrs.evolve(trajectory, exit_reason=ak.ExitReason.TURN_LIMIT),
        attrs.evolve(trajectory, turns=trajectory.turns[:1]),
        attrs.evolve(trajectory, error="ValueError: x"),
        attrs.evolve(trajectory, children=(trajectory,)),
        attrs.evolve(trajectory, key=RolloutKey("t", 0, 1)),
        attrs.evolve(trajectory, chains=(attrs.evolve(chain, id_bytes=bytes(len(chain.id_bytes))),)),
    ]
    assert len({fingerprint(each) for each in [trajectory, *others]}) == 7


async def test_a_resumable_sink_refuses_what_a_journal_refuses() -> None:
    trajectory, _ = await sound()
    sink = ResumableSink(begun_before=[RolloutKey("u", 1, 2)])
    assert (sink.next_attempt("u", 1), sink.next_attempt("t", 0)) == (3, 0)
    await sink.begin(trajectory.key)
    with pytest.raises(InvariantError, match="has begun before"):
        await sink.begin(trajectory.key)
    await sink.seal(trajectory)
    assert sink.sealed() == {("t", 0)}
    with pytest.raises(InvariantError, match="sealed twice"):
        await sink.seal(trajectory)
    with pytest.raises(InvariantError, match="is sealed"):
        await sink.begin(attrs.evolve(trajectory.key, attempt=1))


async def test_a_dead_host_writes_nothing_and_its_last_record_stands() -> None:
    sink = ResumableSink()
    mortal = MortalSink(sink, dies_after=2)
    await mortal.begin(RolloutKey("a", 0))
    with pytest.raises(HostDied):
        await mortal.begin(RolloutKey("b", 0))
    for _ in range(2):
        with pytest.raises(HostDied):
            await mortal.begin(RolloutKey("c", 0))
    assert [key.task_id for key in sink.begun] == ["a", "b"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("loop", LOOPS)
def test_ten_thousand_rollouts(loop: str, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.process_time()
    report = simulate(
        FaultPlan.everything(0.02, seed=SEED, deaths=2), rollouts=10_000, group_size=4, max_rollouts=512, backend=loop
    )
    with capsys.disabled():
        seconds = time.process_time() - started
        print(f" [{report.sealed} sealed, seed {report.seed}, {seconds:.0f} s of one CPU]", end="")
    report.check()
    assert report.sealed == 10_000
    assert report.sittings == 3
    assert len({(t.task_id, t.key.index) for t in report.trajectories}) == 10_000
    assert set(report.struck) == set(faults())


@pytest.mark.slow
def test_virtual_loops_are_what_a_program_needs() -> None:
    for name, options in (virtual_asyncio(), virtual_trio()):
        report = anyio.run(Simulation(FaultPlan(seed=1), rollouts=4).run, backend=name, backend_options=options)
        assert report.sealed == 4
