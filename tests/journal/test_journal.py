"""The journal as a sink: what is acknowledged is there, and only what may be there."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from attrs import evolve

from agentkit.errors import ConfigError, InvariantError
from agentkit.journal import Codec, Journal, JournalError, JournalReader
from agentkit.journal.records import Seal, prepare
from agentkit.protocols import (
    Action,
    Blame,
    Chain,
    ChainDelta,
    ExitReason,
    Grade,
    GradeStatus,
    RolloutKey,
    Sink,
    Span,
    SpanKind,
    Task,
    Trajectory,
    Turn,
)

KEY = RolloutKey("task", 0)
CHAIN = Chain.of(
    [1, 2, 3, 4],
    [0, 1, 0, 1],
    [0.0, -0.5, 0.0, -1.5],
    (
        Span(0, 1, SpanKind.PROMPT),
        Span(1, 2, SpanKind.SAMPLED, 0, 7),
        Span(2, 3, SpanKind.OBSERVATION, 0),
        Span(3, 4, SpanKind.SAMPLED, 1, 8),
    ),
)
TURNS = (Turn(0, Action("a"), chain=0, start=1, stop=2), Turn(1, Action("b"), chain=0, start=3, stop=4))
SEALED = Trajectory(KEY, (), (CHAIN,), TURNS, ExitReason.FINISHED)
CANCELLED = evolve(SEALED, exit_reason=ExitReason.CANCELLED)

Cut = Callable[[Chain, int, int], Chain]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.sqlite"


async def write_two_turns(sink: Sink, cut: Cut, key: RolloutKey = KEY) -> None:
    await sink.begin(key)
    await sink.append(key, TURNS[0], [ChainDelta(0, 0, cut(CHAIN, 0, 3))])
    await sink.append(key, TURNS[1], [ChainDelta(0, 3, cut(CHAIN, 3, 4))])


async def test_unfinished_rollout_has_its_turns_and_tokens(path: Path, cut: Cut) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await write_two_turns(journal, cut)
        assert journal.sealed() == set()
        assert journal.next_attempt("task", 0) == 1
        (unfinished,) = journal.reader.unfinished()
        assert (unfinished.key, unfinished.turns, unfinished.chains) == (KEY, TURNS, (CHAIN,))


async def test_span_cut_between_two_appends_is_whole_again(path: Path, cut: Cut) -> None:
    chain = Chain.of([1, 2, 3], [0, 0, 1], [0, 0, -1], (Span(0, 2, SpanKind.PROMPT), Span(2, 3, SpanKind.SAMPLED, 0)))
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(KEY)
        await journal.append(KEY, TURNS[0], [ChainDelta(0, 0, cut(chain, 0, 1)), ChainDelta(0, 1, cut(chain, 1, 3))])
        assert journal.reader.unfinished()[0].chains == (chain,)


async def test_sealed_rollout_is_whole_and_its_turns_are_gone(path: Path, cut: Cut) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await write_two_turns(journal, cut)
        await journal.seal(SEALED)
        assert journal.sealed() == {("task", 0)}
        assert journal.reader.unfinished() == ()
        assert list(journal.reader.trajectories()) == [SEALED]
        assert journal.reader.trajectory("task", 0) == SEALED
        assert journal.reader.trajectory("task", 1) is None
        (summary,) = journal.reader.summaries()
        assert (summary.key, summary.exit_reason, summary.turns) == (KEY, ExitReason.FINISHED, 2)
        assert (summary.tokens, summary.sampled, summary.score) == (4, 2, None)
    with sqlite3.connect(path) as connection:
        for table in ("turns", "deltas"):
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


async def test_second_seal_is_refused_unless_identical(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(SEALED)
        await journal.seal(SEALED)
        with pytest.raises(InvariantError, match="sealed twice"):
            await journal.seal(evolve(SEALED, error="other"))
        with pytest.raises(InvariantError, match="sealed twice"):
            await journal.seal(evolve(SEALED, key=evolve(KEY, attempt=1)))
        assert list(journal.reader.trajectories()) == [SEALED]


async def test_nothing_follows_a_seal(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(SEALED)
        with pytest.raises(InvariantError, match="after it was sealed"):
            await journal.begin(evolve(KEY, attempt=1))
        with pytest.raises(InvariantError, match="after it was sealed"):
            await journal.append(KEY, TURNS[0], [])


async def test_cancelled_rollout_is_repeated_and_replaced_at_its_next_seal(path: Path, cut: Cut) -> None:
    later = evolve(KEY, attempt=1)
    async with Journal.open(path, writer="inline") as journal:
        await write_two_turns(journal, cut)
        await journal.seal(CANCELLED)
        assert journal.sealed() == set()
        assert journal.reader.sealed() == {("task", 0)}
        assert journal.next_attempt("task", 0) == 1
        with pytest.raises(InvariantError, match="attempt 0 has begun already"):
            await journal.begin(KEY)
        with pytest.raises(InvariantError, match="after it was sealed"):
            await journal.append(KEY, TURNS[1], [])
        with pytest.raises(InvariantError, match="sealed twice"):
            await journal.seal(evolve(CANCELLED, exit_reason=ExitReason.FINISHED))
        await write_two_turns(journal, cut, later)
        assert list(journal.reader.trajectories()) == [CANCELLED], "the old one stands until the new one is there"
        (unfinished,) = journal.reader.unfinished()
        assert (unfinished.key, unfinished.turns, unfinished.chains) == (later, TURNS, (CHAIN,))
        await journal.seal(CANCELLED)  # the same again, which says nothing new
        finished = evolve(SEALED, key=later)
        await journal.seal(finished)
        assert journal.sealed() == journal.reader.sealed() == {("task", 0)}
        assert journal.reader.unfinished() == ()
        assert journal.reader.trajectory("task", 0) == finished
        assert list(journal.reader.trajectories()) == [finished]
        assert [summary.key for summary in journal.reader.summaries()] == [later]
        with pytest.raises(InvariantError, match="sealed twice"):
            await journal.seal(evolve(CANCELLED, key=evolve(KEY, attempt=2)))
        assert journal.next_attempt("task", 0) == 2
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM chains").fetchone() == (1,), "no tokens of the old one"
    connection.close()


async def test_repeat_says_which_ends_are_repeated(path: Path) -> None:
    skipped = {blame: Grade(GradeStatus.SKIPPED, blame=blame) for blame in (Blame.CALLER, Blame.GRADER)}
    ended = [
        CANCELLED,
        evolve(SEALED, grade=skipped[Blame.CALLER], error="\ud83d"),
        evolve(SEALED, grade=skipped[Blame.GRADER]),
        evolve(SEALED, grade=Grade(GradeStatus.ERROR, blame=Blame.CALLER)),
        evolve(SEALED, exit_reason=ExitReason.MODEL_ERROR),
        SEALED,
    ]
    async with Journal.open(path, writer="inline") as journal:
        for index, trajectory in enumerate(ended):
            await journal.seal(evolve(trajectory, key=RolloutKey("task", index)))
    for repeat, again in [
        ((ExitReason.CANCELLED,), {0, 1}),
        ((), set[int]()),
        ((ExitReason.MODEL_ERROR,), {4}),
        ((ExitReason.MODEL_ERROR, ExitReason.CANCELLED), {0, 1, 4}),
    ]:
        async with Journal.open(path, writer="inline", repeat=repeat) as journal:
            assert {index for _, index in journal.sealed()} == set(range(len(ended))) - again
            for index in set(range(len(ended))) - again:
                with pytest.raises(InvariantError, match="after it was sealed"):
                    await journal.begin(RolloutKey("task", index, 9))
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(RolloutKey("task", 1, 1))
    async with Journal.open(path, writer="inline", repeat=()) as journal:
        with pytest.raises(InvariantError, match="after it was sealed"):
            await journal.append(RolloutKey("task", 1, 1), TURNS[0], [])
        assert journal.sealed() == {("task", index) for index in range(len(ended))}


async def test_trajectory_replaced_while_others_are_read_comes_once(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        for index in range(3):
            await journal.seal(evolve(CANCELLED, key=RolloutKey("task", index)))
        found = []
        for trajectory in journal.reader.trajectories():
            found.append(trajectory.key)
            if len(found) == 1:
                for index in (0, 2):
                    await journal.seal(evolve(SEALED, key=RolloutKey("task", index, 1)))
        assert found == [RolloutKey("task", 0), RolloutKey("task", 1), RolloutKey("task", 2, 1)]


async def test_trajectory_replaced_while_it_is_read_is_whole(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(CANCELLED)
        writer: Any = journal._writer
        later = Seal(evolve(SEALED, key=evolve(KEY, attempt=1), chains=()))

        def replace(statement: str) -> None:
            if "FROM chains" in statement:
                assert writer._store.commit([prepare(later, Codec())]) == [None]

        journal.reader._connection.set_trace_callback(replace)
        assert journal.reader.trajectory("task", 0) == CANCELLED
        journal.reader._connection.set_trace_callback(None)
        assert journal.reader.trajectory("task", 0) == later.trajectory


async def test_changed_task_is_told_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    task = Task("task", "Do it.", data={"n": 1, "anything": object()}, metadata={"run": 1})

    async def seal(attempt: int, task: Task) -> list[str]:
        caplog.clear()
        async with Journal.open(path, writer="inline", repeat=tuple(ExitReason)) as journal:
            for number in (2 * attempt, 2 * attempt + 1):
                await journal.seal(evolve(SEALED, key=evolve(KEY, attempt=number), task=task))
        return [record.getMessage() for record in caplog.records if record.name == "agentkit.journal"]

    assert await seal(0, task) == []
    assert await seal(1, evolve(task, metadata={}, data={"anything": object(), "n": 1})) == []
    for attempt, change in enumerate([{"messages": "Do that."}, {"data": {"n": 2}}, {"budget": {"max_turns": 1}}]):
        (message,) = await seal(2 + attempt, evolve(task, **change))  # type: ignore[arg-type]  # of three kinds
        assert "'task'" in message
    assert await seal(9, Task("")) == [], "a trajectory without its task says nothing"


async def test_journal_from_before_tasks_were_compared_goes_on(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(evolve(CANCELLED, task=Task("task", "Do it.")))
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE tasks")
    connection.close()
    with JournalReader.open(path) as reader:
        assert reader.sealed() == {("task", 0)}
    async with Journal.open(path, writer="inline") as journal:
        await journal.seal(evolve(SEALED, key=evolve(KEY, attempt=1), task=Task("task", "Do it.")))
        assert journal.sealed() == {("task", 0)}


async def test_second_append_of_a_turn_is_refused_unless_identical(path: Path, cut: Cut) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await write_two_turns(journal, cut)
        await journal.append(KEY, TURNS[1], [ChainDelta(0, 3, cut(CHAIN, 3, 4))])
        with pytest.raises(InvariantError, match="twice, with other content"):
            await journal.append(KEY, TURNS[1], [])
        with pytest.raises(InvariantError, match="twice, with other content"):
            await journal.append(KEY, evolve(TURNS[1], action=Action("c")), [ChainDelta(0, 3, cut(CHAIN, 3, 4))])
        with pytest.raises(InvariantError, match="twice, with other content"):
            await journal.append(KEY, TURNS[1], [ChainDelta(1, 3, cut(CHAIN, 3, 4))])
        assert journal.reader.unfinished()[0].chains == (CHAIN,)


async def test_delta_must_begin_where_its_chain_ends(path: Path, cut: Cut) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(KEY)
        await journal.append(KEY, TURNS[0], [ChainDelta(0, 0, cut(CHAIN, 0, 3))])
        for start in (0, 2, 4):
            with pytest.raises(InvariantError, match="which has 3 so far"):
                await journal.append(KEY, TURNS[1], [ChainDelta(0, start, cut(CHAIN, 3, 4))])
        assert journal.reader.unfinished()[0].turns == TURNS[:1], "a refused append leaves nothing behind"


async def test_turns_come_in_order(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await journal.begin(KEY)
        await journal.append(KEY, TURNS[1], [])
        with pytest.raises(InvariantError, match="after turn 1"):
            await journal.append(KEY, TURNS[0], [])


async def test_later_attempt_supersedes_the_earlier(path: Path, cut: Cut) -> None:
    later = evolve(KEY, attempt=1)
    async with Journal.open(path, writer="inline") as journal:
        with pytest.raises(InvariantError, match="the newest is None"):
            await journal.append(KEY, TURNS[0], [])
        await write_two_turns(journal, cut)
        await journal.begin(later)
        with pytest.raises(InvariantError, match="the newest is 1"):
            await journal.append(KEY, TURNS[1], [])
        for key in (KEY, later):
            with pytest.raises(InvariantError, match="attempt 1 has begun already"):
                await journal.begin(key)
        with pytest.raises(InvariantError, match="but attempt 1 has begun"):
            await journal.seal(SEALED)
        (unfinished,) = journal.reader.unfinished()
        assert (unfinished.key, unfinished.turns, unfinished.chains) == (later, (), ())
        await journal.seal(evolve(SEALED, key=later))
        assert journal.next_attempt("task", 0) == 2


async def test_journal_goes_on_after_it_was_closed(path: Path, cut: Cut) -> None:
    async with Journal.open(path, writer="inline") as journal:
        await write_two_turns(journal, cut)
    assert sorted(child.name for child in path.parent.iterdir()) == ["journal.sqlite", "journal.sqlite-lock"]
    async with Journal.open(path.parent, writer="inline") as journal:
        assert journal.reader.unfinished()[0].chains == (CHAIN,)
        await journal.seal(SEALED)
    with JournalReader.open(path.parent) as reader:
        assert reader.sealed() == {("task", 0)}


async def test_closed_journal_says_so(path: Path) -> None:
    async with Journal.open(path, writer="inline") as journal:
        pass
    with pytest.raises(JournalError, match="is closed"):
        await journal.begin(KEY)


async def test_options_are_checked(path: Path) -> None:
    wrong: Any = "process"
    for repeat in ("cancelled", ("ended",)):
        with pytest.raises(ConfigError, match="repeat must be a collection of exit reasons"):
            async with Journal.open(path, repeat=repeat):  # type: ignore[arg-type]
                pass
    with pytest.raises(ConfigError, match="'process'"):
        async with Journal.open(path, writer=wrong):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", ["NORMAL", "FULL"])
async def test_thread_writes_what_many_rollouts_hand_in(path: Path, cut: Cut, synchronous: Any) -> None:
    keys = [RolloutKey(f"task-{n // 4}", n % 4) for n in range(64)]

    async def roll(key: RolloutKey) -> None:
        await write_two_turns(journal, cut, key)
        assert (key.task_id, key.index) not in journal.sealed()
        await journal.seal(evolve(SEALED, key=key))
        assert (key.task_id, key.index) in journal.sealed()  # what is acknowledged can be read

    async with Journal.open(path, synchronous=synchronous) as journal, anyio.create_task_group() as group:
        for key in keys:
            group.start_soon(roll, key)
    with JournalReader.open(path) as reader:
        assert {t.key for t in reader.trajectories()} == set(keys)
        assert {t.chains for t in reader.trajectories()} == {(CHAIN,)}


@pytest.mark.slow
async def test_record_of_a_cancelled_caller_is_written(path: Path) -> None:
    async with Journal.open(path) as journal:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.begin(KEY)
        assert scope.cancelled_caught
        with anyio.CancelScope() as scope:
            scope.cancel()
            await journal.seal(SEALED)
    with JournalReader.open(path) as reader:
        assert list(reader.trajectories()) == [SEALED]


@pytest.mark.slow
async def test_journal_closes_in_good_order_when_its_block_is_cancelled(path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with Journal.open(path) as journal:
            await journal.begin(KEY)
            scope.cancel()
            await journal.seal(SEALED)
    assert scope.cancelled_caught
    async with Journal.open(path) as journal:  # the lock is free
        assert journal.sealed() == {("task", 0)}


@pytest.mark.slow
async def test_refused_record_leaves_its_batch_alone(path: Path) -> None:
    outcomes: dict[RolloutKey, str] = {}
    fine, too_big = [RolloutKey("fine", index) for index in range(3)], RolloutKey("task", 2**70)

    async def begin(key: RolloutKey) -> None:
        try:
            await journal.begin(key)
            outcomes[key] = "written"
        except (InvariantError, JournalError) as error:
            outcomes[key] = type(error).__name__

    async with Journal.open(path) as journal:
        await journal.begin(KEY)
        async with anyio.create_task_group() as group:
            for key in (fine[0], too_big, fine[1], KEY, fine[2]):
                group.start_soon(begin, key)
    assert outcomes == {**dict.fromkeys(fine, "written"), too_big: "JournalError", KEY: "InvariantError"}
    with JournalReader.open(path) as reader:
        assert {unfinished.key for unfinished in reader.unfinished()} == {KEY, *fine}


@pytest.mark.slow
async def test_value_that_cannot_be_encoded_fails_alone(path: Path) -> None:
    broken: Any = evolve(SEALED, turns=(object(),))
    async with Journal.open(path) as journal:
        with pytest.raises(JournalError, match="cannot encode seal"):
            await journal.seal(broken)
        await journal.seal(SEALED)
        assert journal.sealed() == {("task", 0)}


@pytest.mark.slow
async def test_full_disk_fails_every_waiter_and_may_pass(path: Path) -> None:
    failed: list[JournalError] = []
    big = evolve(SEALED, error="x" * 200_000)

    async def seal(index: int) -> None:
        try:
            await journal.seal(evolve(big, key=RolloutKey("task", index)))
        except JournalError as error:
            failed.append(error)

    async with Journal.open(path) as journal:
        await journal.begin(KEY)
        store = journal._writer._store  # type: ignore[attr-defined]  # the only way to a full disk without root
        store._connection.execute("PRAGMA max_page_count = 20")
        async with anyio.create_task_group() as group:
            for index in range(8):
                group.start_soon(seal, index)
        assert len(failed) == len({id(error) for error in failed}) == 8
        assert all(error.retryable and "SQLITE_FULL" in str(error) for error in failed)
        store._connection.execute("PRAGMA max_page_count = 1000000")
        await journal.seal(big)
    with JournalReader.open(path) as reader:
        assert list(reader.trajectories()) == [big]
