"""The journal under the real pool: stop in the middle, resume, one sealed trajectory each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import pytest

import agentkit as ak
from agentkit.journal import Journal, JournalReader
from agentkit.models import ScriptedModel
from agentkit.protocols import ChainDelta, RolloutKey, Turn
from agentkit.tokens import join

TASKS = [ak.Task(f"task-{n}", "count") for n in range(6)]
SCRIPT = [f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{n}"}}}}\n</tool_call>' for n in range(3)] + ["done"]


@ak.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


def pool_of(sink: Journal) -> ak.Pool:
    agent = ak.Agent(ScriptedModel(SCRIPT, token_s=0.01), tools=[echo])
    return ak.Pool(agent, max_rollouts=4, group_size=2, sink=sink)


async def stop_and_resume(path: Path, writer: Literal["thread", "inline"]) -> None:
    async with Journal.open(path, writer=writer) as journal:
        async with pool_of(journal) as pool, pool.run(TASKS) as run:
            async for _ in run:
                break  # leaving early cancels what is left
        done, cancelled = journal.sealed(), journal.reader.sealed() - journal.sealed()
        assert 0 < len(done) < 12
        assert cancelled
    async with Journal.open(path, writer=writer) as journal, pool_of(journal) as pool:
        resumed = await pool.run(TASKS)
        again = {(t.task_id, t.key.index): t.key.attempt for t in resumed}
        assert set(again) == {(task.id, index) for task in TASKS for index in range(2)} - done
        assert all(again[rollout] == 1 for rollout in cancelled)
    with JournalReader.open(path) as reader:
        assert reader.sealed() == {(task.id, index) for task in TASKS for index in range(2)}
        assert reader.unfinished() == ()
        finished = list(reader.trajectories())
        assert {t.exit_reason for t in finished} == {ak.ExitReason.FINISHED}, "what was cancelled is made good"
        assert len({t.chains[0].id_bytes for t in finished}) == 1, "the same script gives the same tokens"
        assert {t.key for t in resumed} <= {t.key for t in finished}
        assert {(t.task_id, t.key.index) for t in finished if t.key.attempt} == cancelled


async def test_run_left_early_is_resumed(tmp_path: Path) -> None:
    await stop_and_resume(tmp_path, "inline")


@pytest.mark.slow
async def test_run_left_early_is_resumed_with_a_writer_thread(tmp_path: Path) -> None:
    await stop_and_resume(tmp_path, "thread")


async def test_strict_journal_leaves_what_was_cancelled(tmp_path: Path) -> None:
    async with Journal.open(tmp_path, writer="inline", repeat=()) as journal:
        async with pool_of(journal) as pool, pool.run(TASKS) as run:
            async for _ in run:
                break
        interrupted = journal.sealed()
        assert interrupted == journal.reader.sealed()
        async with pool_of(journal) as pool:
            assert interrupted.isdisjoint({(t.task_id, t.key.index) for t in await pool.run(TASKS)})
    with JournalReader.open(tmp_path) as reader:
        assert "cancelled" in {str(summary.exit_reason) for summary in reader.summaries()}
        assert reader.sealed() == {(task.id, index) for task in TASKS for index in range(2)}


async def test_rollout_left_while_it_was_graded_is_graded_on_resume(tmp_path: Path) -> None:
    grading = anyio.Event()

    async def never(_trajectory: ak.Trajectory, _env: object) -> float:
        grading.set()
        await anyio.sleep(60)
        return 0.0

    async def at_once(_trajectory: ak.Trajectory, _env: object) -> float:
        return 1.0

    for reward in (never, at_once):
        agent = ak.Agent(ScriptedModel(["done"]), reward=reward)
        async with Journal.open(tmp_path, writer="inline") as journal, ak.Pool(agent, sink=journal) as pool:
            run = pool.run(TASKS[:1])
            if reward is never:
                async with run:
                    await grading.wait()
            else:
                assert len(await run) == 1
        with JournalReader.open(tmp_path) as reader:
            (trajectory,) = reader.trajectories()
            assert trajectory.exit_reason is ak.ExitReason.FINISHED
            assert (trajectory.key.attempt, trajectory.score) == ((0, None) if reward is never else (1, 1.0))


async def test_what_is_appended_adds_up_to_what_is_sealed(tmp_path: Path) -> None:
    seen: dict[RolloutKey, list[ChainDelta]] = {}

    class Spy(Journal):
        async def append(self, key: RolloutKey, turn: Turn, deltas: Sequence[ChainDelta], /) -> None:
            await super().append(key, turn, deltas)
            seen.setdefault(key, []).extend(deltas)
            (unfinished,) = [each for each in self.reader.unfinished() if each.key == key]
            assert unfinished.chains == join(seen[key])

    async with Spy.open(tmp_path, writer="inline") as journal, pool_of(journal) as pool:
        for trajectory in await pool.run(TASKS[:2]):
            assert trajectory.chains == join(seen[trajectory.key])
