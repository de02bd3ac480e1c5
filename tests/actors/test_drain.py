"""Draining a run: nothing new begins, what has begun ends as it would, and a later run makes the rest."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentkit import Agent, ExitReason, Outcome, OutcomePolicy, Pool, Task, Trajectory
from agentkit.journal import Journal, JournalReader
from agentkit.models import ScriptedModel
from agentkit.protocols import RolloutKey
from agentkit.testing import MemorySink, ResumableSink, World, virtual_asyncio, virtual_trio


def slow(seconds: float = 1.0, **parts) -> Agent:
    return Agent(ScriptedModel(["Hello."], first_token_s=seconds), **parts)


def tasks(n: int) -> list[Task]:
    return [Task(f"t{i}", "Go.") for i in range(n)]


async def drained_after(pool: Pool, source, seconds: float) -> tuple[list[Trajectory], bool, float]:
    """What a run yields that is drained after so many seconds, whether it was exhausted, and when it ended."""
    run, seen = pool.run(source), list[Trajectory]()

    async def drain() -> None:
        await anyio.sleep(seconds)
        run.drain()

    start = anyio.current_time()
    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        async for trajectory in run:
            seen.append(trajectory)
        group.cancel_scope.cancel()
    return seen, run.exhausted, anyio.current_time() - start


async def test_what_has_begun_ends_as_it_would_and_nothing_else_begins() -> None:
    sink, world = MemorySink(), World()
    async with Pool(slow(10, env=world), max_rollouts=4, sink=sink) as pool:
        seen, exhausted, took = await drained_after(pool, tasks(50), 15)
        assert pool.live.held == 0
    assert [t.exit_reason for t in seen] == [ExitReason.FINISHED] * 8
    assert len(sink.begun) == len(sink.trajectories) == 8
    assert took == pytest.approx(20, abs=1)
    assert not exhausted
    assert not world.open


async def test_a_run_that_is_through_its_tasks_is_exhausted_drained_or_not() -> None:
    async with Pool(slow(10)) as pool:
        seen, exhausted, _ = await drained_after(pool, tasks(3), 5)
    assert (len(seen), exhausted) == (3, True)


async def test_a_run_drained_before_it_began_yields_nothing() -> None:
    sink, taken = MemorySink(), list[Task]()

    def source() -> Iterator[Task]:
        for task in tasks(3):
            taken.append(task)
            yield task

    async with Pool(slow(), sink=sink) as pool:
        run = pool.run(source())
        run.drain()
        run.drain()
        assert await run == []
    assert not sink.begun
    assert not taken, "an endless source would be read for ever"


async def test_draining_from_the_loop_that_iterates_begins_nothing_more() -> None:
    sink = MemorySink()
    async with Pool(slow(5), max_rollouts=4, sink=sink) as pool:
        run = pool.run(tasks(20))
        seen = []
        async for trajectory in run:
            seen.append(trajectory)
            if len(seen) == 1:
                run.drain()
    assert len(seen) == len(sink.begun) <= 8, "the four that were under way, and at most one in each one's place"


async def test_an_async_source_is_left_where_it_is() -> None:
    closed = []

    async def source() -> AsyncIterator[Task]:
        try:
            for task in tasks(100):
                yield task
                await anyio.sleep(3)
        finally:
            closed.append(True)

    async with Pool(slow(10)) as pool:
        seen, exhausted, took = await drained_after(pool, source(), 10)
    assert (len(seen), exhausted, closed) == (4, False, [True])
    assert took < 22


async def test_an_endless_source_ends_by_draining() -> None:
    def endless() -> Iterator[Task]:
        number = 0
        while True:
            yield Task(str(number), "Go.")
            number += 1

    async with Pool(slow(1), max_rollouts=8) as pool:
        seen, _, took = await drained_after(pool, endless(), 9.5)
    assert len(seen) == 80
    assert took < 11


async def test_a_group_cut_short_comes_last_and_whole_groups_come_whole() -> None:
    async with Pool(slow(10), max_rollouts=6, group_size=4) as pool, anyio.create_task_group() as group:
        run = pool.run(tasks(5))

        async def drain() -> None:
            await anyio.sleep(5)
            run.drain()

        group.start_soon(drain)
        groups = [[str(t.key) for t in each] async for each in run.groups()]
    assert [sorted(each) for each in groups] == [["t0#0", "t0#1", "t0#2", "t0#3"], ["t1#0", "t1#1"]]


async def test_a_rollout_that_was_begun_is_still_retried_and_replaced() -> None:
    def reward(_trajectory: Trajectory, _env: object) -> float:
        raise ValueError("no grade")

    sink = MemorySink()
    policy = OutcomePolicy(ungraded=Outcome.REPLACE, replacements=1)
    agent = slow(10, reward=reward, outcomes=policy)
    async with Pool(agent, max_rollouts=1, sink=sink) as pool:
        seen, _, _ = await drained_after(pool, tasks(9), 5)
    assert [(t.key.task_id, t.key.index, t.replaces) for t in seen] == [("t0", 0, None), ("t0", 1, 0)]


async def test_cancelling_a_drained_run_ends_what_had_begun() -> None:
    sink = MemorySink()
    async with Pool(slow(1000), max_rollouts=4, sink=sink) as pool, pool.run(tasks(9)) as run:
        await anyio.sleep(1)
        run.drain()
        await anyio.sleep(1)
        assert len(sink.begun) == 4
        run.cancel()
    assert [t.exit_reason for t in sink.trajectories] == [ExitReason.CANCELLED] * 4


@example(at=1e-98, count=1, group_size=3, limit=3, backend="asyncio")
@given(
    at=st.floats(0, 40),
    count=st.integers(0, 12),
    group_size=st.integers(1, 3),
    limit=st.integers(1, 5),
    backend=st.sampled_from(["asyncio", "trio"]),
)
def test_a_drained_run_and_its_resume_make_each_rollout_once(
    tmp_path_factory: pytest.TempPathFactory, at: float, count: int, group_size: int, limit: int, backend: str
) -> None:
    path: Path = tmp_path_factory.mktemp("run")
    expected = {(f"t{n}", index) for n in range(count) for index in range(group_size)}

    async def main() -> None:
        async with Journal.open(path, writer="inline") as journal:
            async with Pool(slow(7), max_rollouts=limit, group_size=group_size, sink=journal) as pool:
                first, exhausted, _ = await drained_after(pool, tasks(count), at)
            begun = {(t.task_id, t.key.index) for t in first}
            assert begun == expected or not exhausted  # it may be drained as its last rollout begins, before it knows
            assert journal.sealed() == begun
            async with Pool(slow(7), max_rollouts=limit, group_size=group_size, sink=journal) as pool:
                second = {(t.task_id, t.key.index) for t in await pool.run(tasks(count))}
            assert second == expected - begun

    name, options = virtual_asyncio() if backend == "asyncio" else virtual_trio()
    anyio.run(main, backend=name, backend_options=options)
    with JournalReader.open(path) as reader:
        assert reader.sealed() == expected
        assert all(summary.key.attempt == 0 for summary in reader.summaries()), "nothing was begun in vain"
        assert reader.unfinished() == ()


def ungraded(*names: str) -> Agent:
    """An agent whose rollouts of these tasks and indices get no grade, and are replaced."""

    def reward(trajectory: Trajectory, _env: object) -> float:
        if str(trajectory.key) in names:
            raise ValueError("no grade")
        return 1.0

    return slow(10, reward=reward, outcomes=OutcomePolicy(ungraded=Outcome.REPLACE, replacements=2))


async def test_a_resumed_group_gives_its_replacements_indices_that_are_free(tmp_path: Path) -> None:
    agent = ungraded("t0#0", "t0#1", "t1#0")
    async with Journal.open(tmp_path, writer="inline") as journal:
        async with Pool(agent, max_rollouts=1, group_size=2, sink=journal) as pool:
            seen, _, _ = await drained_after(pool, tasks(2), 5)
        assert [(t.key.index, t.replaces) for t in seen] == [(0, None), (2, 0)]
        async with Pool(agent, max_rollouts=1, group_size=2, sink=journal) as pool:
            groups = [group async for group in pool.run(tasks(2)).groups()]
    assert [[(str(t.key), t.replaces) for t in group] for group in groups] == [
        [("t0#1", None), ("t0#3", 1)],
        [("t1#0", None), ("t1#1", None), ("t1#2", 0)],
    ]


async def test_a_replacement_that_was_cut_off_is_made_again(tmp_path: Path) -> None:
    agent = ungraded("t0#0")
    async with Journal.open(tmp_path, writer="inline") as journal:
        async with Pool(agent, max_rollouts=1, sink=journal) as pool, pool.run(tasks(1)) as run:
            await anext(run)
            await anyio.sleep(5)  # the replacement is under way, and is cancelled now
        assert journal.sealed() == {("t0", 0)}
        async with Pool(agent, max_rollouts=1, sink=journal) as pool:
            (again,) = await pool.run(tasks(1))
        assert (again.key.index, again.key.attempt, again.exit_reason) == (1, 1, ExitReason.FINISHED)
        async with Pool(agent, max_rollouts=1, sink=journal) as pool:
            assert await pool.run(tasks(1)) == []


async def test_a_replacement_that_never_began_is_made_before_one_that_did() -> None:
    sink = ResumableSink(begun_before=[RolloutKey("t0", 2, 0)])  # the second replacement, cut off
    outcomes = OutcomePolicy(exits={ExitReason.MODEL_ERROR: Outcome.REPLACE}, replacements=2)
    async with Pool(slow(outcomes=outcomes), sink=sink) as pool:
        seen = await pool.run(tasks(1))
    assert sorted((t.key.index, t.key.attempt) for t in seen) == [(0, 0), (1, 0), (2, 1)]


async def test_a_replacement_that_fell_due_and_never_began_is_made_once() -> None:
    class Told(ResumableSink):
        def replaced(self, task_id: str, /) -> int:
            return 5  # more than the policy has

    sink = Told()
    for index in (0, 1):
        async with Pool(slow()) as pool:
            await sink.seal(attrs.evolve(await pool.start(tasks(1)[0], index=index).result(), task=tasks(1)[0]))
    outcomes = OutcomePolicy(exits={ExitReason.MODEL_ERROR: Outcome.REPLACE}, replacements=2)
    for expected in ([2, 3], []):
        async with Pool(slow(outcomes=outcomes), sink=sink, group_size=2) as pool:
            assert sorted(t.key.index for t in await pool.run(tasks(1))) == expected
