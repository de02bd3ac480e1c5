"""One agent in one worker process: limits, deadlines, cancellation, what fails, and that nothing waits for it."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from agentkit_verl import RowInfo, close_workers
from agentkit_verl.building import _refills
from agentkit_verl.groups import GroupLost
from agentkit_verl.loop import _process_of
from agentkit_verl.rows import FIELD

from agentkit import ConfigError, Trajectory
from agentkit.journal import JournalReader
from tests.verl.rig.loops import Loops

CODE = """
import anyio

from agentkit.protocols import Score

state = {"open": 0, "closed": 0, "most": 0, "starting": 0, "most_starting": 0}


class Env:
    async def start(self, task):
        state["open"] += 1
        state["most"] = max(state["most"], state["open"])
        state["starting"] += 1
        state["most_starting"] = max(state["most_starting"], state["starting"])
        try:
            await anyio.sleep(0.01)
            if "hang-env" in task.messages[-1].content:
                await anyio.sleep_forever()
        finally:
            state["starting"] -= 1

    async def close(self):
        state["open"] -= 1
        state["closed"] += 1


async def uneven(rollout):
    await rollout.sample()
    if rollout.key.index == 1:
        rollout.observe("Go on.")
        await rollout.sample()  # one too many
    elif rollout.key.index == 0:
        await anyio.sleep(0.5)


async def forgetful(trajectory, env):
    return float(trajectory.task.data["gone\\nERROR forged"])


async def score(trajectory, env):
    if "hang-reward" in trajectory.prompt[-1].content:
        await anyio.sleep_forever()
    return Score(0.5, tuple(0.25 for _ in trajectory.turns))
"""
AGENT: dict[str, Any] = {"env": "PARTS:Env", "reward": "PARTS:score", "budget": {"trajectory_s": 60, "grace_s": 0.5}}
DONE = "Done.<|im_end|>"


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    before = list(sys.path)
    yield
    await close_workers()
    sys.path[:] = before


def hangs_where_told(prompt: str) -> str | None:
    return None if "hang-model" in prompt else DONE


def loops(
    folder: Path, *overrides: str, answer: Callable[[str], str | None] = hangs_where_told, **options: Any
) -> Loops:
    seconds = options.pop("seconds", 0.0)
    agent = {**AGENT, **options.pop("agent", {})}
    return Loops(folder, answer, *overrides, entry={"agent": agent, **options}, code=CODE, seconds=seconds)


def sealed_in(folder: Path) -> list[Trajectory]:
    """What the one journal in a folder holds."""
    (path,) = (path for path in folder.iterdir() if not path.name.endswith(("-lock", "-wal", "-shm")))
    with JournalReader.open(path) as reader:
        return list(reader.trajectories())


async def test_a_worker_has_its_share_of_the_limits(tmp_path: Path) -> None:
    verl = loops(
        tmp_path,
        "actor_rollout_ref.rollout.agent.num_workers=4",
        pool={"max_rollouts": 20, "max_starts": 8, "max_generations": 12},
        seconds=0.02,
    )
    found = await verl.group("u", 24)
    assert all(len(rows) == 1 for rows in found)
    assert verl.parts.state["most"] == 5
    assert verl.parts.state["most_starting"] == 2
    assert verl.client.most_running == 3
    assert verl.parts.state["open"] == 0
    assert verl.parts.state["closed"] == 24


async def test_a_share_is_never_nothing(tmp_path: Path) -> None:
    verl = loops(tmp_path, "actor_rollout_ref.rollout.agent.num_workers=8", pool={"max_rollouts": 2, "max_starts": 1})
    assert [len(rows) for rows in await verl.group("u", 3)] == [1, 1, 1]
    assert verl.parts.state["most"] == 1


@pytest.mark.parametrize("where", ["hang-env", "hang-model", "hang-reward"])
async def test_a_step_ends_in_time_whatever_hangs(tmp_path: Path, where: str) -> None:
    budget = {"trajectory_s": 60, "setup_s": 60, "reward_s": 1, "grace_s": 0.5}
    verl = loops(tmp_path, agent={"budget": budget}, verl={"batch_s": 1.5})
    await verl.session("first")  # the agent is made
    began = time.monotonic()
    sessions = [verl.session("u", number, global_steps=9, content=where if number else "Go.") for number in range(4)]
    found = await asyncio.wait_for(asyncio.gather(*sessions), 20)
    assert time.monotonic() - began < 1.5 + 1 + 2 * 0.5 + 3  # batch_s, reward_s, grace_s, and a loaded machine
    assert found[1:] == [[], [], []]
    assert found[0] == []  # left alone, it has no baseline
    assert verl.parts.state["open"] == 0


async def test_what_waits_for_its_turn_when_the_step_ends_is_not_begun(tmp_path: Path) -> None:
    verl = loops(tmp_path, pool={"max_rollouts": 1}, verl={"batch_s": 1.0})
    await verl.session("first")
    began = time.monotonic()
    found = await verl.group("u", 3, content="hang-model", global_steps=9)
    assert time.monotonic() - began < 5.0
    assert found == [[], [], []]
    assert verl.parts.state["closed"] == 2  # the first session, and the one that began


async def test_a_step_that_is_over_leaves_what_comes_after_it_its_time(tmp_path: Path) -> None:
    verl = loops(tmp_path, verl={"batch_s": 0.5})
    await verl.session("first", global_steps=9)
    await asyncio.sleep(0.6)
    # fetched in place of a lost group: without time of its own it were lost at once, and another fetched
    assert [len(rows) for rows in await verl.group("fetched", 2, global_steps=9)] == [1, 1]
    assert [len(rows) for rows in await verl.group("next", 2, global_steps=10)] == [1, 1]

    async def as_verl(trajectory: dict[str, Any]) -> Any:  # whose frame has a `trajectory`
        return await verl.session("validation", global_steps=9)

    assert len(await asyncio.create_task(as_verl({"validate": True}))) == 1


async def test_the_deadline_of_a_step_holds_where_waiting_is_free(tmp_path: Path) -> None:
    budget = {**AGENT["budget"], "count_waiting": False, "reward_s": 0.5}
    verl = loops(tmp_path, agent={"budget": budget}, verl={"batch_s": 1.0})
    await verl.session("first")
    worker = await next(iter(_process_of(verl.client)._workers.values()))
    worker.built.pauses.tell(True)  # and nobody says that it is over
    began = time.monotonic()
    found = await asyncio.wait_for(verl.group("u", 2, content="hang-model", global_steps=9), 20)
    assert found == [[], []]
    assert time.monotonic() - began < 1.0 + 0.5 + 2 * 0.5 + 3
    assert verl.parts.state["open"] == 0


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("where", ["hang-env", "hang-model", "hang-reward"])
async def test_a_session_that_is_cancelled_closes_its_env_first(tmp_path: Path, where: str, cancels: int) -> None:
    verl = loops(tmp_path, verl={"journal": str(tmp_path / "journal")})
    await verl.session("first")
    cut = asyncio.create_task(verl.session("u", 0, content=where))
    other = asyncio.create_task(verl.session("u", 1))
    while verl.parts.state["open"] + verl.parts.state["closed"] < 3 or len(verl.client.sampled) < 2:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    for _ in range(cancels):
        cut.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(cut, 10)
    if cancels < 2:
        assert verl.parts.state["open"] == 0
    assert await asyncio.wait_for(other, 10) == []  # its sibling does not wait for ever; it is left alone
    await close_workers()
    assert verl.parts.state["open"] == 0
    assert verl.parts.state["closed"] == 3
    sealed = {str(each.key): str(each.exit_reason) for each in sealed_in(tmp_path / "journal")}
    ends = "finished" if where == "hang-reward" else "cancelled"  # it was over, if not graded
    assert sealed == {"first#0": "finished", "u#0": ends, "u#1": "finished"}


async def test_an_agent_that_cannot_be_made_is_told_to_each_session_and_tried_again(tmp_path: Path) -> None:
    verl = loops(tmp_path, agent={"budget": {"max_turn": 3}})
    found = await verl.group("u", 3)
    assert [type(each) for each in found] == [ConfigError] * 3
    assert all("agent.budget.max_turn" in str(each) for each in found)
    verl.write({"agent": AGENT})
    assert [len(rows) for rows in await verl.group("u", 3)] == [1, 1, 1]


async def test_a_row_that_is_no_task_fails_alone_and_its_siblings_go_on(tmp_path: Path) -> None:
    verl = loops(tmp_path)
    good = [verl.session("u", number) for number in range(2)]
    bad = verl.session("u", 2, tools_kwargs={"budget": {"max_turn": 1}})
    found = await asyncio.wait_for(asyncio.gather(*good, bad, return_exceptions=True), 10)
    assert isinstance(found[2], ConfigError)
    assert [len(rows) for rows in found[:2]] == [1, 1]


async def test_lost_groups_fail_once_where_the_trainer_fetches_others(tmp_path: Path) -> None:
    verl = loops(tmp_path, verl={"on_lost_group": "fail", "batch_s": 1.0})
    await verl.session("first")
    sessions = [verl.session("u", n, global_steps=9, content="hang-model" if n else "Go.") for n in range(3)]
    found = await asyncio.gather(*sessions, return_exceptions=True)
    assert sorted(map(str, map(type, found))) == sorted(map(str, [GroupLost, list, list]))
    (error,) = (each for each in found if isinstance(each, GroupLost))
    lost = "1 train, 2 drop (trajectory_timeout; nothing was sampled)"
    assert str(error) == f"of the 3 sessions of task 'u' too few are fit to train on: {lost}"


async def test_why_a_group_was_lost_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    verl = loops(tmp_path, agent={"reward": "PARTS:forgetful"})
    assert await verl.group("u", 2) == [[], []]
    (said,) = (record.getMessage() for record in caplog.records if "given up" in record.getMessage())
    assert said.endswith(": of its 2 sessions 2 drop (finished; no score: KeyError: 'gone\\nERROR forged')")


async def test_an_opening_that_does_not_fit_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    verl = loops(tmp_path, "actor_rollout_ref.rollout.prompt_length=8", "actor_rollout_ref.rollout.response_length=1")
    assert await verl.group("u", 2) == [[], []]
    (said,) = (record.getMessage() for record in caplog.records if "given up" in record.getMessage())
    assert said.endswith(
        "2 drop (token_limit; its opening is longer than budget.max_tokens, or than verl's prompt and response)"
    )


async def test_a_lost_rollout_is_replaced_while_its_siblings_run(tmp_path: Path) -> None:
    outcomes = {"exits": {"finished": "train", "turn_limit": "replace"}, "replacements": 1}
    budget = {**AGENT["budget"], "max_turns": 1}
    verl = loops(tmp_path, agent={"loop": "PARTS:uneven", "outcomes": outcomes, "budget": budget})
    found = await verl.group("u", 3)
    told = [RowInfo.of(row.extra_fields[FIELD]) for (row,) in found]
    assert [(each.session, each.counts["replaced"]) for each in told] == [(0, 0), (1, 1), (2, 0)]
    assert [each.exit_reason for each in told] == ["finished"] * 3
    assert verl.parts.state["closed"] == 4


@pytest.mark.parametrize(
    ("override", "told"),
    [
        (
            "actor_rollout_ref.rollout.multi_turn.format=odd",
            "rollout.multi_turn.format is 'odd', for which there is no",
        ),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path=", "agent_loop_config_path must name the YAML file"),
    ],
)
async def test_what_of_verls_configuration_does_not_fit_is_named(tmp_path: Path, override: str, told: str) -> None:
    (found,) = await loops(tmp_path, override).group("u", 1)
    assert isinstance(found, ConfigError)
    assert told in str(found)


@pytest.mark.parametrize(
    ("overrides", "refills"),
    [
        ([], False),
        (["trainer.v1.trainer_mode=colocate_async"], True),
        (["trainer.v1.trainer_mode=agentkit_separate_async"], True),
        (["trainer.v1.sampler.sync_refill_failed_groups=true"], True),
        (["trainer.v1.trainer_mode=colocate_async", "trainer.use_v1=false"], False),
    ],
)
async def test_which_trainers_fetch_another_group_for_one_that_failed(
    tmp_path: Path, overrides: list[str], refills: bool
) -> None:
    assert _refills(loops(tmp_path, *overrides).config) is refills


async def test_the_event_loop_is_not_held(tmp_path: Path) -> None:
    verl = loops(tmp_path, pool={"max_rollouts": 64}, agent={"tools": ["finish"]})
    longest, is_over = 0.0, False

    async def tick() -> None:
        nonlocal longest
        before = time.thread_time()  # of this thread alone: what others take of the machine is not the loop's fault
        while not is_over:
            await asyncio.sleep(0.002)
            now = time.thread_time()
            longest, before = max(longest, now - before), now

    await verl.session("warm")  # imports
    verl.write({"agent": AGENT, "pool": {"max_rollouts": 64}})
    await close_workers()
    made = [verl.loop() for _ in range(64)]  # verl's own work
    ticking = asyncio.create_task(tick())
    found = await asyncio.gather(*(verl.session(f"u{n // 8}", n % 8, loop=loop) for n, loop in enumerate(made)))
    is_over = True
    await ticking
    assert sum(map(len, found)) == 64
    assert longest < 0.2
