"""Pools: groups, limits, fairness, back-pressure, and leaving."""

import anyio
import pytest

from agentkit import Agent, Budget, ConfigError, ExitReason, Outcome, OutcomePolicy, Pool, Task
from agentkit.actors import FairPermits
from agentkit.actors._source import as_task
from agentkit.errors import AgentkitError
from agentkit.models import ScriptedModel
from agentkit.testing import MemorySink, World, swallow_cancellation


def slow(seconds: float = 1.0, **parts) -> Agent:
    return Agent(ScriptedModel(["Hello."], first_token_s=seconds), **parts)


def tasks(n: int):
    return [Task(f"t{i}", "Go.") for i in range(n)]


async def test_each_task_yields_a_group_of_rollouts_as_they_finish() -> None:
    sink = MemorySink()
    async with Pool(slow(), group_size=3, sink=sink) as pool:
        seen = [t.key async for t in pool.run(tasks(4))]
    assert {(k.task_id, k.index) for k in seen} == {(f"t{i}", j) for i in range(4) for j in range(3)}
    assert len(seen) == len(sink.trajectories) == 12


async def test_a_run_may_be_awaited() -> None:
    async with Pool(slow()) as pool:
        trajectories = await pool.run(tasks(5))
    assert len(trajectories) == 5


async def test_live_rollouts_starts_and_generations_have_limits_of_their_own() -> None:
    peak = {"live": 0, "starts": 0, "generations": 0}
    now = dict.fromkeys(peak, 0)

    def enter(name: str) -> None:
        now[name] += 1
        peak[name] = max(peak[name], now[name])

    async def start(_: Task) -> None:
        enter("live")
        enter("starts")
        await anyio.sleep(1)
        now["starts"] -= 1

    async def close() -> None:
        now["live"] -= 1

    class Counting(ScriptedModel):
        async def sample_tokens(self, request, emit):
            enter("generations")
            try:
                return await super().sample_tokens(request, emit)
            finally:
                now["generations"] -= 1

    agent = Agent(Counting(["Hello."], first_token_s=5), env=World(on_start=start, on_close=close))
    async with Pool(agent, max_rollouts=6, max_starts=2, max_generations=3) as pool:
        assert len(await pool.run(tasks(20))) == 20
    assert peak == {"live": 6, "starts": 2, "generations": 3}


async def test_the_source_is_read_only_as_rollouts_end() -> None:
    taken = []

    def endless():
        i = 0
        while True:
            taken.append(i)
            yield Task(str(i), "Go.")
            i += 1

    async with Pool(slow(), max_rollouts=4) as pool:
        count = 0
        async for _ in pool.run(endless()):
            count += 1
            assert len(taken) <= count + 4 + 2
            if count == 30:
                break
    assert len(taken) <= 36


async def test_a_slow_consumer_holds_the_source_back() -> None:
    sink, taken = MemorySink(), []

    async def source():
        for i in range(100):
            taken.append(i)
            yield Task(str(i), "Go.")

    async with Pool(slow(0.1), max_rollouts=4, sink=sink) as pool:
        async for _ in pool.run(source()):
            await anyio.sleep(60)
            if len(sink.trajectories) > 8:
                break
            assert len(sink.trajectories) <= 12
    assert len(taken) < 20


async def test_leaving_early_cancels_and_seals_what_is_left() -> None:
    sink, world = MemorySink(), World()
    async with Pool(slow(env=world), max_rollouts=8, sink=sink) as pool:
        async for _ in pool.run(tasks(50)):
            break
    assert not world.open
    assert len(sink.trajectories) == len(sink.begun) <= 24
    assert {t.exit_reason for t in sink.trajectories} == {ExitReason.FINISHED, ExitReason.CANCELLED}


async def test_leaving_a_run_leaves_the_pool_open() -> None:
    async with Pool(slow(5), max_rollouts=4) as pool:
        async with pool.run(tasks(10)) as run:
            async for _ in run:
                break
        assert len(await pool.run(tasks(3))) == 3


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    world = World()

    async def block() -> None:
        async with Pool(slow(100, env=world)) as pool:
            pool.start("Go.")
            await anyio.sleep(1)
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await block()
    assert not world.open


async def test_a_failing_source_is_heard_of_after_what_runs_has_finished() -> None:
    async def source():
        yield Task("a", "Go.")
        yield Task("b", "Go.")
        raise OSError("disk")

    async with Pool(slow()) as pool:
        run = pool.run(source())
        seen = [(await anext(run)).exit_reason for _ in range(2)]
        with pytest.raises(OSError, match="disk"):
            await anext(run)
    assert seen == [ExitReason.FINISHED] * 2


class StubbornSource:
    """Tasks that never end, from code that catches whatever is thrown at it."""

    def __init__(self) -> None:
        self._given = False

    def __aiter__(self):
        return self

    async def __anext__(self) -> Task:
        if not self._given:
            self._given = True
            return Task("a", "Go.")
        await swallow_cancellation()
        raise StopAsyncIteration


async def test_a_source_that_swallows_cancellation_cannot_hold_the_pool() -> None:
    started = anyio.current_time()
    async with Pool(slow()) as pool:
        async for _ in pool.run(StubbornSource()):
            break
    assert anyio.current_time() - started < 30


async def test_two_tasks_of_one_id_are_an_error() -> None:
    async with Pool(slow()) as pool:
        with pytest.raises(ConfigError, match="two tasks of one run have the id 'a'"):
            await pool.run([Task("a", "Go."), Task("a", "Go.")])


async def test_a_sink_that_fails_is_loud() -> None:
    class Full(MemorySink):
        async def seal(self, trajectory, /) -> None:
            raise AgentkitError("disk full")

    world = World()
    with pytest.raises(AgentkitError, match="disk full"):
        async with Pool(slow(env=world), sink=Full()) as pool:
            await pool.run(tasks(3))
    assert not world.open


async def test_what_the_sink_holds_sealed_is_skipped() -> None:
    class Resumed(MemorySink):
        def sealed(self):
            return {("t0", 0), ("t1", 1)}

        def next_attempt(self, task_id, index, /):
            return 4

    async with Pool(slow(), group_size=2, sink=Resumed()) as pool:
        keys = {(t.key.task_id, t.key.index, t.key.attempt) for t in await pool.run(tasks(2))}
    assert keys == {("t0", 1, 4), ("t1", 0, 4)}


async def test_a_replaced_rollout_gets_a_successor_in_its_group() -> None:
    class Sometimes(ScriptedModel):
        calls = 0

        async def sample_tokens(self, request, emit):
            self.calls += 1
            if self.calls == 2:
                raise ZeroDivisionError
            return await super().sample_tokens(request, emit)

    outcomes = OutcomePolicy(exits=dict.fromkeys(ExitReason, Outcome.REPLACE) | {ExitReason.FINISHED: Outcome.TRAIN})
    async with Pool(Agent(Sometimes(["Hi."], first_token_s=1), outcomes=outcomes), group_size=4) as pool:
        trajectories = await pool.run(tasks(1))
    assert sorted(t.key.index for t in trajectories) == [0, 1, 2, 3, 4]
    (replaced,) = [t for t in trajectories if t.outcome is Outcome.REPLACE]
    (successor,) = [t for t in trajectories if t.replaces is not None]
    assert successor.replaces == replaced.key.index
    assert sum(t.outcome is Outcome.TRAIN for t in trajectories) == 4


async def test_permits_go_round_the_groups_that_wait() -> None:
    permits, order = FairPermits(1), []
    await permits.acquire("x")

    async def want(group: str) -> None:
        await permits.acquire(group)
        order.append(group)
        permits.release()

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(want, "greedy")
        await anyio.sleep(0.1)
        group.start_soon(want, "late")
        await anyio.sleep(0.1)
        permits.release()
    assert order.index("late") == 1
    assert permits.held == 0


async def test_a_cancelled_waiter_never_keeps_a_permit() -> None:
    permits = FairPermits(1)
    await permits.acquire("x")
    async with anyio.create_task_group() as group:
        for wait in (0.5, 1.0, 1.0, 1.5):

            async def want(wait: float = wait) -> None:
                with anyio.move_on_after(wait):
                    await permits.acquire("y")
                    permits.release()

            group.start_soon(want)
        await anyio.sleep(1.0)
        permits.release()
    assert (permits.held, permits.waiting) == (0, 0)


def test_a_pool_used_outside_its_block_says_so() -> None:
    with pytest.raises(ConfigError, match="async with Pool"):
        Pool(slow()).start("Go.")


async def test_a_failing_close_is_reported_and_harms_nobody(caplog) -> None:
    async def close() -> None:
        raise OSError("busy")

    async with Pool(slow(env=World(on_close=close))) as pool:
        trajectories = await pool.run(tasks(3))
        assert len(pool.stuck) == 3
    assert {t.exit_reason for t in trajectories} == {ExitReason.FINISHED}
    assert "WorldEnv.close of t0#0 failed: OSError: busy" in caplog.text


async def test_one_stuck_rollout_does_not_starve_the_others() -> None:
    class Hanging(ScriptedModel):
        async def sample_tokens(self, request, emit):
            if request.request_id.startswith("t0"):
                await anyio.sleep(10_000)
            return await super().sample_tokens(request, emit)

    agent = Agent(Hanging(["Hi."], first_token_s=1), budget=Budget(generation_s=500))
    done = []
    async with Pool(agent, max_rollouts=3) as pool:
        async for trajectory in pool.run(tasks(20)):
            done.append((trajectory.task_id, anyio.current_time()))
    assert {task_id for task_id, at in done if at < 20} == {f"t{i}" for i in range(1, 20)}
    assert done[-1][0] == "t0"


async def test_leaving_a_run_gives_back_its_live_permits() -> None:
    async with Pool(slow(5), max_rollouts=4) as pool:
        async with pool.run(tasks(10)) as run:
            async for _ in run:
                break
        assert (pool.live.held, pool.live.waiting) == (0, 0)
        with anyio.fail_after(60):
            assert len(await pool.run(tasks(3))) == 3
        assert pool.live.held == 0


async def test_a_live_permit_is_held_until_its_trajectory_is_taken() -> None:
    sink = MemorySink()
    async with Pool(slow(), max_rollouts=3, sink=sink) as pool:
        run = pool.run(tasks(9))
        await anext(run)
        await anyio.sleep(100)
        assert pool.live.held == 3
        assert len(sink.trajectories) == 4, "one taken, three that wait to be"
        assert len([t async for t in run]) == 8


async def test_replacements_are_numbered_on_and_run_out() -> None:
    class Failing(ScriptedModel):
        calls = 0

        async def sample_tokens(self, request, emit):
            self.calls += 1
            if self.calls <= 12:
                raise ZeroDivisionError
            return await super().sample_tokens(request, emit)

    outcomes = OutcomePolicy(exits={ExitReason.MODEL_ERROR: Outcome.REPLACE}, replacements=3)
    async with Pool(Agent(Failing(["x"]), outcomes=outcomes), group_size=2) as pool:
        trajectories = await pool.run(tasks(1))
    assert sorted(t.key.index for t in trajectories) == [0, 1, 2, 3, 4]
    assert sum(t.replaces is not None for t in trajectories) == 3


@pytest.mark.parametrize("where", ["yield", "await"])
async def test_leaving_ends_a_source_and_lets_it_clean_up(where) -> None:
    log = []

    async def source():
        try:
            for name in "abc":
                yield Task(name, "Go.")
                if where == "await":
                    await anyio.sleep(10_000)
        finally:
            with anyio.CancelScope(shield=where == "await"):  # while it is cancelled, it has to say so itself
                await anyio.sleep(0.1)
            log.append("closed")

    async with Pool(slow(), max_rollouts=1) as pool:
        async with pool.run(source()) as run:
            async for _ in run:
                break
        await anyio.sleep(5)
        assert log == ["closed"]


async def test_leaving_ends_what_runs_at_once() -> None:
    started = anyio.current_time()
    async with Pool(slow(100)) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(1)
    assert anyio.current_time() - started == pytest.approx(1)
    assert (await actor.result()).exit_reason is ExitReason.CANCELLED


async def test_groups_come_whole_with_their_replacements() -> None:
    class Sometimes(ScriptedModel):
        async def sample_tokens(self, request, emit):
            if request.request_id.startswith("t1#1"):
                raise ZeroDivisionError
            return await super().sample_tokens(request, emit)

    outcomes = OutcomePolicy(exits=dict.fromkeys(ExitReason, Outcome.REPLACE) | {ExitReason.FINISHED: Outcome.TRAIN})
    async with Pool(Agent(Sometimes(["Hi."], first_token_s=1), outcomes=outcomes), group_size=3) as pool:
        groups = {group[0].task_id: group async for group in pool.run(tasks(3)).groups()}
    assert {task_id: len(group) for task_id, group in groups.items()} == {"t0": 3, "t1": 4, "t2": 3}
    assert all(len({t.task_id for t in group}) == 1 for group in groups.values())


async def test_strings_are_tasks_and_one_task_is_not_many() -> None:
    async with Pool(slow()) as pool:
        trajectories = await pool.run(["One.", "Two."])
        assert sorted(t.task_id[:5] for t in trajectories) == ["task0", "task1"]
        with pytest.raises(ConfigError, match=r"pool\.run takes many tasks"):
            pool.run(Task("a", "Go."))
        with pytest.raises(ConfigError, match="task 1 must be a Task or a string, found 3"):
            await pool.run(["Go.", 3])


async def test_a_rollout_is_started_once() -> None:
    async with Pool(slow()) as pool:
        first, second = pool.start("Go."), pool.start("Go.")
        assert first.key != second.key
        pool.start(Task("a", "Go."))
        with pytest.raises(ConfigError, match="rollout a#0 is under way"):
            pool.start(Task("a", "Go."))


async def test_a_string_is_not_many_tasks() -> None:
    async with Pool(slow()) as pool:
        with pytest.raises(ConfigError, match="takes many tasks"):
            pool.run("Go.")


async def test_a_run_leaves_alone_what_was_started_by_hand() -> None:
    async with Pool(slow(5)) as pool:
        actor = pool.start(Task("t1", "Go."))
        with pytest.raises(ConfigError, match="rollout t1#0 is under way"):
            await pool.run(tasks(3))
        assert (await actor.result()).exit_reason is ExitReason.FINISHED


async def test_what_has_ended_may_be_started_again() -> None:
    async with Pool(slow()) as pool:
        for _ in range(2):
            assert (await pool.start(Task("a", "Go.")).result()).exit_reason is ExitReason.FINISHED


async def test_what_only_waited_for_its_turn_may_run_later() -> None:
    async with Pool(slow(5), max_rollouts=2) as pool:
        async with pool.run(tasks(5)):
            await anyio.sleep(1)
        await anyio.sleep(1)
        assert len(await pool.run(tasks(5))) == 5


async def test_a_rollout_that_the_sink_holds_sealed_is_not_started() -> None:
    class Resumed(MemorySink):
        def sealed(self):
            return {("a", 0)}

        def next_attempt(self, task_id, index, /):
            return 1

    async with Pool(slow(), sink=Resumed()) as pool:
        with pytest.raises(ConfigError, match="rollout a#0 is sealed in the sink"):
            pool.start(Task("a", "Go."))
        assert (await pool.start(Task("a", "Go."), index=1).result()).exit_reason is ExitReason.FINISHED


def test_a_string_that_no_encoding_takes_still_names_a_task() -> None:
    assert as_task("\ud800", 3).id.startswith("task3-")
    assert as_task("\ud800", 3).id != as_task("\ud801", 3).id
