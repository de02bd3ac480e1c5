"""What enters the rates, and what a report says of a real run."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import fmean, median

import anyio
import pytest
from attrs import asdict, evolve
from hypothesis import given
from hypothesis import strategies as st

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.journal.export import to_json
from agentkit.models import ScriptedModel
from agentkit.protocols import (
    Action,
    ExitReason,
    Grade,
    GradeStatus,
    Observation,
    ObservationStatus,
    Outcome,
    RolloutKey,
    Score,
    SpanKind,
    Timings,
    Trajectory,
    Turn,
)
from agentkit.runs import RunInfo
from agentkit.runs.report import Facts, Report, RolloutFacts, read_facts, report, summarise
from agentkit.testing import virtual_asyncio

Make = Callable[..., RolloutFacts]
HERE = Path("run")


def info(tasks: int | None, group_size: int) -> RunInfo:
    return RunInfo(name="r", created=datetime(2026, 1, 1, tzinfo=UTC), group_size=group_size, tasks=tasks)


def facts_of(
    rollouts: Sequence[RolloutFacts], *, run: RunInfo | None = None, unfinished: Sequence[RolloutKey] = ()
) -> Facts:
    return Facts(path=HERE, info=run, rollouts=tuple(rollouts), unfinished=tuple(unfinished))


def rates(found: Report) -> tuple[int, int, int]:
    """(solved, expected, graded)."""
    return found.solved, found.coverage.expected, found.graded


def test_what_is_not_there_is_not_solved(facts: Make) -> None:
    rollouts = [
        facts("a", 0, 1.0),
        facts("a", 1, 0.0),
        facts("a", 2, None, exit_reason=ExitReason.CANCELLED, grade="skipped"),
        facts("a", 3, None, grade="timeout"),
        facts("b", 0, 1.0),
        facts("b", 1, 0.5),
    ]
    found = summarise(facts_of(rollouts, run=info(3, 4), unfinished=[RolloutKey("b", 2)]))
    assert rates(found) == (2, 12, 4)
    cover = found.coverage
    assert (cover.tasks, cover.sealed, cover.unfinished, cover.missing) == (3, 6, 1, 5)
    assert cover.is_known
    assert found.success is not None
    assert found.graded_success is not None
    assert found.score is not None
    assert (found.success.value, found.graded_success.value, found.score.value) == (2 / 12, 2 / 4, 2.5 / 4)
    (one, _, four) = found.pass_at
    assert (one.k, one.tasks, one.estimate.value) == (1, 3, pytest.approx(2 / 12))
    assert (four.k, four.tasks, four.estimate.value) == (4, 3, pytest.approx(2 / 3))


def test_a_bare_journal_has_what_it_has_and_says_so(facts: Make) -> None:
    found = summarise(facts_of([facts("a", 0, 1.0), facts("b", 1, 0.0)], unfinished=[RolloutKey("a", 1)]))
    assert rates(found) == (1, 3, 2)
    assert found.coverage.missing == 0
    assert not found.coverage.is_known
    assert any("not known" in note for note in found.notes)


def test_a_replacement_stands_for_what_it_replaces(facts: Make) -> None:
    lost = facts("a", 0, None, outcome=Outcome.REPLACE, exit_reason=ExitReason.MODEL_ERROR)
    alone = summarise(facts_of([lost, facts("a", 1, 1.0)], run=info(1, 2)))
    assert (rates(alone), alone.coverage.replaced) == ((1, 2, 1), 0)
    replaced = summarise(facts_of([lost, facts("a", 1, 1.0), facts("a", 2, 1.0, replaces=0)], run=info(1, 2)))
    assert (rates(replaced), replaced.coverage.replaced) == ((2, 2, 2), 1)
    twice = [
        lost,
        facts("a", 1, 1.0),
        facts("a", 2, None, replaces=0, outcome=Outcome.REPLACE),
        facts("a", 3, 0.0, replaces=2),
    ]
    assert rates(summarise(facts_of(twice, run=info(1, 2)))) == (1, 2, 2)
    under_way = summarise(facts_of([lost, facts("a", 1, 1.0)], run=info(1, 2), unfinished=[RolloutKey("a", 2)]))
    assert rates(under_way) == (1, 2, 1)
    assert sum(each.count for each in replaced.endings) == 3, "the mix of exit reasons is of all that was sealed"


def test_what_is_run_again_counts_once(facts: Make) -> None:
    found = summarise(facts_of([facts("a", 0, 1.0, retries=2)], unfinished=[RolloutKey("a", 0, 3)]))
    assert (rates(found), found.coverage.unfinished, found.retried) == ((1, 1, 1), 0, 1)


def test_the_threshold_is_the_users(facts: Make) -> None:
    rollouts = [facts("a", n, n / 4) for n in range(5)]
    assert [summarise(facts_of(rollouts), success=x).solved for x in (0.0, 0.5, 0.75, 1.0, 1.5)] == [5, 3, 2, 1, 0]


def test_groups_without_an_advantage(facts: Make) -> None:
    scores = {"solved": [1, 1], "unsolved": [0, 0], "half": [0.5, 0.5], "mixed": [0, 1], "alone": [1]}
    rollouts = [facts(task, n, float(s)) for task, group in scores.items() for n, s in enumerate(group)]
    dropped = [facts("dropped", 0, 1.0), facts("dropped", 1, 0.0, outcome=Outcome.DROP)]
    masked = [facts("masked", 0, 1.0), facts("masked", 1, 0.0, outcome=Outcome.MASK)]
    groups = summarise(facts_of([*rollouts, *dropped, *masked])).groups
    assert (groups.counted, groups.same_score, groups.solved, groups.unsolved) == (5, 3, 1, 2)


def test_an_empty_run_is_a_report_too() -> None:
    found = summarise(facts_of([]))
    assert (found.success, found.score, found.turns, found.pass_at) == (None, None, None, ())
    begun = summarise(facts_of([], run=info(2, 2)))
    assert begun.success is not None
    assert (begun.success.value, begun.coverage.expected, begun.coverage.missing) == (0.0, 4, 4)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from([0.0, 0.5, 1.0])), max_size=12), st.randoms()
)
def test_rates_against_counting(facts: Make, drawn: list[tuple[str, float | None]], shuffle: Random) -> None:
    places: Counter[str] = Counter()
    rollouts = []
    for task, score in drawn:
        rollouts.append(facts(task, places[task], score))
        places[task] += 1
    found = summarise(facts_of(rollouts, run=info(4, 5)))
    sizes = {task: max(5, places[task]) for task in places}
    expected = sum(sizes.values()) + 5 * max(0, 4 - len(places))
    solved = sum(score == 1.0 for _, score in drawn)
    assert rates(found) == (solved, expected, sum(score is not None for _, score in drawn))
    assert found.success is not None
    assert found.success.value == pytest.approx(solved / expected)
    assert sum(each.count for each in found.endings) == len(rollouts)
    shuffle.shuffle(rollouts)
    again = summarise(facts_of(rollouts, run=info(4, 5)))
    assert (again.solved, again.coverage, again.endings, again.stages) == (
        found.solved,
        found.coverage,
        found.endings,
        found.stages,
    )


def test_a_real_run_adds_up(real_run: Path) -> None:
    found = report(real_run)
    with JournalReader.open(real_run) as reader:
        trajectories = list(reader.trajectories())
    assert {each.exit_reason for each in trajectories} > {ExitReason.FINISHED, ExitReason.CANCELLED}, (
        "a run with faults"
    )
    gone = {(each.task_id, each.replaces) for each in trajectories if each.replaces is not None}
    counted = [each for each in trajectories if (each.task_id, each.key.index) not in gone]
    assert found.coverage.replaced == len(trajectories) - len(counted) > 0
    assert found.coverage.expected == 36
    assert found.coverage.sealed == len(trajectories)
    assert found.coverage.unfinished == 1
    assert found.solved == sum(each.score == 1.0 for each in counted)
    assert found.graded == sum(each.score is not None for each in counted)
    assert found.score is not None
    assert found.score.value == pytest.approx(fmean(each.score for each in counted if each.score is not None))
    assert Counter({each.exit_reason: each.count for each in found.endings}) == Counter(
        each.exit_reason.value for each in trajectories
    )
    assert found.sampled == sum(chain.mask_bytes.count(1) for each in trajectories for chain in each.chains)
    assert found.tokens is not None
    assert found.turns is not None
    assert found.tokens.total == sum(len(chain) for each in trajectories for chain in each.chains)
    assert found.turns.median == median(len(each.turns) for each in trajectories)
    observations = [o for each in trajectories for turn in each.turns for o in turn.observations]
    looked = [o for o in observations if o.name == "look" and o.status is not ObservationStatus.FORMAT_ERROR]
    (tool,) = found.tools
    assert (tool.name, tool.calls) == ("look", len(looked)), "a tool that the policy made up is no tool"
    assert tool.errors == sum(o.status is ObservationStatus.ERROR for o in looked) > 0
    assert tool.timeouts == sum(o.status is ObservationStatus.TIMEOUT for o in looked) > 0
    turns = [turn for each in trajectories for turn in each.turns]
    wrong = [
        turn
        for turn in turns
        if turn.action.faults or any(o.status is ObservationStatus.FORMAT_ERROR for o in turn.observations)
    ]
    assert found.cut_turns == sum(turn.action.finish == "length" for turn in turns)
    assert found.format_error_turns == len(wrong) > len([turn for turn in turns if turn.action.faults]) > 0
    assert sum(found.errors.values()) == sum(
        bool(each.error) + (each.grade is not None and each.grade.status in ("error", "timeout"))
        for each in trajectories
    )
    assert any("ModelError" in error for error in found.errors)
    assert sum(found.given_up.values()) == sum(len(each.attempts) for each in trajectories) > 0
    stages = {stage.name: stage for stage in found.stages}
    assert stages["tools"].total_s == pytest.approx(sum(each.timings.tool_s for each in trajectories))
    assert stages["setup"].median_s == pytest.approx(median(each.timings.setup_s for each in trajectories))
    assert sum(stage.share for stage in found.stages) == pytest.approx(1.0)
    assert (found.wall_s, found.sampled_per_wall_s) == (100.0, found.sampled / 100)
    slowest = max(trajectories, key=lambda each: each.timings.total_s)
    assert found.slowest[0].seconds == slowest.timings.total_s
    assert report(real_run) == found, "the same seed, the same report"
    assert to_json(asdict(found))


def test_turns_that_a_limit_of_tokens_cut(tmp_path: Path) -> None:
    async def main() -> None:
        agent = ak.Agent(ScriptedModel(["a long answer " * 50]), budget=ak.Budget(max_tokens=120))
        async with (
            Journal.open(tmp_path, writer="inline") as journal,
            ak.Pool(agent, group_size=3, sink=journal) as pool,
        ):
            await pool.run([ak.Task("a", "go")])

    backend, options = virtual_asyncio()
    anyio.run(main, backend=backend, backend_options=options)
    found = report(tmp_path)
    assert found.cut_turns == 3


def test_tokens_are_not_read(real_run: Path) -> None:
    with JournalReader.open(real_run) as reader:
        for bare, whole in zip(reader.trajectories(tokens=False), reader.trajectories(), strict=True):
            assert [len(chain) for chain in bare.chains] == [0] * len(whole.chains)
            assert [chain.spans for chain in bare.chains] == [chain.spans for chain in whole.chains]
            assert evolve(bare, chains=()) == evolve(whole, chains=())
        assert reader.unfinished_keys() == tuple(each.key for each in reader.unfinished())
        assert len(reader.unfinished_keys()) == 1


def test_sub_agents_and_names_without_end(tmp_path: Path) -> None:
    def turn(number: int) -> Turn:
        name = f"tool-{number}"
        return Turn(number, Action("x"), (Observation("", status=ObservationStatus.SKIPPED, call_id="c", name=name),))

    child = Trajectory(
        RolloutKey("child", 0),
        (),
        (),
        tuple(map(turn, range(300))),
        ExitReason.FINISHED,
        timings=Timings(generation_s=3),
    )
    parent = Trajectory(
        RolloutKey("t", 0),
        (),
        (),
        (Turn(0, Action("y"), (Observation("said"),)),),
        ExitReason.FINISHED,
        grade=Grade(GradeStatus.OK, Score(1.0)),
        timings=Timings(generation_s=2, total_s=9),
        children=(child,),
        stuck=("loop of t#0",),
    )

    async def write() -> None:
        async with Journal.open(tmp_path, writer="inline") as journal:
            await journal.seal(parent)
            await journal.seal(evolve(parent, key=RolloutKey("u", 0), stuck=("loop of u#0",)))

    anyio.run(write)
    facts = read_facts(tmp_path / "journal.sqlite")
    assert facts.info is None
    assert [each.turns for each in facts.rollouts] == [301, 301]
    assert [(each.generation_s, each.sampling_s) for each in facts.rollouts] == [(2, 5), (2, 5)]
    assert facts.stuck == {"loop of ...": 2}
    assert len(facts.tools) <= 201
    assert sum(use.calls for use in facts.tools.values()) == 602
    assert facts.tools["(env)"].calls == 2


def test_spans_say_what_was_sampled(real_run: Path) -> None:
    with JournalReader.open(real_run) as reader:
        for facts, whole in zip(read_facts(real_run).rollouts, reader.trajectories(), strict=True):
            sampled = [s.stop - s.start for c in whole.chains for s in c.spans if s.kind is SpanKind.SAMPLED]
            assert facts.sampled == sum(sampled) == sum(c.mask_bytes.count(1) for c in whole.chains)
