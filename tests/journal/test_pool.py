"""The journal under the real pool: stop in the middle, resume, one sealed trajectory each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

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
        interrupted = journal.sealed()
        assert 0 < len(interrupted) < 12
    async with Journal.open(path, writer=writer) as journal, pool_of(journal) as pool:
        resumed = await pool.run(TASKS)
        assert {(t.task_id, t.key.index) for t in resumed}.isdisjoint(interrupted)
    with JournalReader.open(path) as reader:
        assert reader.sealed() == {(task.id, index) for task in TASKS for index in range(2)}
        assert reader.unfinished() == ()
        finished = [t for t in reader.trajectories() if t.exit_reason is ak.ExitReason.FINISHED]
        assert len({t.chains[0].id_bytes for t in finished}) == 1, "the same script gives the same tokens"
        assert {t.key for t in resumed} <= {t.key for t in finished}


async def test_run_left_early_is_resumed(tmp_path: Path) -> None:
    await stop_and_resume(tmp_path, "inline")


@pytest.mark.slow
async def test_run_left_early_is_resumed_with_a_writer_thread(tmp_path: Path) -> None:
    await stop_and_resume(tmp_path, "thread")


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
