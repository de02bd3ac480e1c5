"""One rollout from start to seal: nothing is skipped, done twice or left, whenever it is cancelled."""

import asyncio
import subprocess
import sys

import anyio
import pytest

from agentkit import (
    Agent,
    Blame,
    Budget,
    ExitReason,
    Observation,
    Outcome,
    OutcomePolicy,
    Pool,
    SandboxDead,
    Task,
)
from agentkit.errors import AgentkitError, ConfigError, ModelError, NotAppendable, RolloutEnded
from agentkit.models import ScriptedMessageModel, ScriptedModel
from agentkit.protocols import GradeStatus, ObservationStatus
from agentkit.testing import FakeTool, MemorySink, World, hide_behind_a_shield, virtual_asyncio

CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'


async def ok(_: object = None) -> str:
    return "ok"


class SlowSink(MemorySink):
    """Notes a trajectory only after a while."""

    async def seal(self, trajectory, /) -> None:
        await anyio.sleep(1)
        await super().seal(trajectory)


async def test_a_cancel_cuts_neither_the_seal_nor_the_close() -> None:
    log = []

    async def close() -> None:
        await anyio.sleep(1)
        log.append("closed")

    sink, world = SlowSink(), World(on_close=close)
    with anyio.move_on_after(5):
        async with Pool(Agent(ScriptedModel(["w " * 50], token_s=1), env=world), sink=sink) as pool:
            await pool.start("Go.").result()
    assert [(t.exit_reason, t.stuck) for t in sink.trajectories] == [(ExitReason.CANCELLED, ())]
    assert log == ["closed"]
    assert (world.made, world.closed) == (1, 1)


async def test_a_cancel_while_waiting_to_try_again_keeps_the_attempt_given_up() -> None:
    async def start(task: Task) -> None:
        raise OSError("no room")

    sink, world = MemorySink(), World(on_start=start)
    async with Pool(Agent(ScriptedModel(["x"]), env=world, outcomes=OutcomePolicy(backoff_s=100)), sink=sink) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(5)
        actor.cancel()
        trajectory = await actor.result()
    assert (trajectory.exit_reason, trajectory.outcome) == (ExitReason.ENV_START_FAILED, Outcome.DROP)
    assert sink.trajectories == [trajectory]
    assert (world.made, world.closed) == (1, 1)


@pytest.mark.parametrize("cleanup_s", [3, 100])
async def test_a_cancel_that_comes_after_the_end_forbids_another_try(cleanup_s) -> None:
    class Failing(ScriptedModel):
        async def sample_tokens(self, request, emit):
            raise ModelError("gone")

    async def untidy(rollout) -> None:
        try:
            await rollout.sample()
        finally:
            await anyio.sleep(cleanup_s)

    world, sink = World(), MemorySink()
    async with Pool(Agent(Failing(["x"]), env=world, loop=untidy), sink=sink) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(1)
        actor.cancel()
        trajectory = await actor.result()
    assert (trajectory.exit_reason, trajectory.attempts) == (ExitReason.MODEL_ERROR, ())
    assert sink.trajectories == [trajectory]
    assert (world.made, world.closed) == (1, 1)


async def test_a_cancelled_start_gives_its_permit_to_the_next() -> None:
    async def start(task: Task) -> None:
        if task.id == "slow":
            await anyio.sleep(1000)

    world = World(on_start=start)
    async with Pool(Agent(ScriptedModel(["x"]), env=world), max_starts=1) as pool:
        slow, quick = pool.start(Task("slow", "Go.")), pool.start(Task("quick", "Go."))
        await anyio.sleep(1)
        slow.cancel()
        with anyio.fail_after(20):
            assert (await quick.result()).exit_reason is ExitReason.FINISHED
            assert (await slow.result()).exit_reason is ExitReason.CANCELLED
    assert (world.made, world.closed) == (2, 2)


async def test_an_env_that_will_not_start_or_close_is_named() -> None:
    async def start(task: Task) -> None:
        await hide_behind_a_shield()

    agent = Agent(
        ScriptedModel(["x"]),
        env=World(on_start=start),
        budget=Budget(setup_s=5, grace_s=2),
        outcomes=OutcomePolicy(retries=0),
    )
    started = anyio.current_time()
    trajectory = await agent.run("Go.")
    assert anyio.current_time() - started == pytest.approx(7)
    assert trajectory.exit_reason is ExitReason.ENV_START_FAILED
    assert trajectory.stuck == ("WorldEnv.start",)


@pytest.mark.parametrize("close", [hide_behind_a_shield, lambda: anyio.sleep(1000)], ids=["shield", "sleep"])
async def test_a_close_takes_no_longer_than_its_grace_and_never_holds_the_record(close) -> None:
    sink = MemorySink()
    agent = Agent(ScriptedModel(["x"]), env=World(on_close=close), budget=Budget(grace_s=3))
    started = anyio.current_time()
    async with Pool(agent, sink=sink) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(1)
        assert len(sink.trajectories) == 1, "sealed before the env closes"
        await actor.result()
        assert anyio.current_time() - started == pytest.approx(3)
        assert [name for name in pool.stuck if "WorldEnv.close" in name and "was abandoned" in name]


async def test_a_loop_that_hangs_after_the_end_is_ended_after_its_grace_and_named() -> None:
    async def stays(rollout) -> None:
        await rollout.sample()
        rollout.finish()
        await hide_behind_a_shield()

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["x"]), loop=stays, budget=Budget(trajectory_s=1000, grace_s=5)).run("Go.")
    assert anyio.current_time() - started == pytest.approx(5)
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert any("loop of" in name for name in trajectory.stuck)


async def test_a_loop_that_hangs_is_ended_at_the_deadline_and_its_grace() -> None:
    async def stays(rollout) -> None:
        await hide_behind_a_shield()

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["x"]), loop=stays, budget=Budget(trajectory_s=10, grace_s=2)).run("Go.")
    assert anyio.current_time() - started == pytest.approx(12)
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT


async def test_a_call_that_will_not_end_is_closed_at_its_limit_and_grace_whenever_it_began() -> None:
    agent = Agent(
        ScriptedModel([CALL, "done"], first_token_s=3),
        tools=[FakeTool("work", lambda _: hide_behind_a_shield())],
        budget=Budget(tool_s=5, generation_s=6, grace_s=2),
    )
    trajectory = await agent.run("Go.")
    assert trajectory.turns[0].tool_s == pytest.approx(7)
    assert trajectory.stuck == ("work",)
    assert trajectory.exit_reason is ExitReason.FINISHED


async def test_what_goes_on_after_the_end_samples_nothing_and_is_told_only_once() -> None:
    told = []

    async def stubborn(rollout) -> None:
        await rollout.sample()
        rollout.finish()
        with pytest.raises(RolloutEnded):
            rollout.observe("Go on.")
        for attempt in range(100):
            try:
                await rollout.sample()
            except RolloutEnded:
                told.append(attempt)

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["x"] * 200), loop=stubborn, budget=Budget(trajectory_s=1000)).run("Go.")
    assert told == [0]
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.FINISHED, 1)
    assert anyio.current_time() - started < 1, "the second time ends the loop at once"


async def test_the_first_end_stands() -> None:
    async def confused(rollout) -> None:
        await rollout.sample()
        rollout.finish()
        raise LookupError("after the end")

    trajectory = await Agent(ScriptedModel(["x"]), loop=confused).run("Go.")
    assert (trajectory.exit_reason, trajectory.error) == (ExitReason.FINISHED, None)


async def test_a_sink_sees_every_turn_once_the_cut_one_included_and_can_rebuild_the_chain() -> None:
    sink = MemorySink()
    agent = Agent(
        ScriptedModel([CALL, "word " * 50], token_s=0.1), tools=[FakeTool("work", ok)], budget=Budget(generation_s=5)
    )
    async with Pool(agent, sink=sink) as pool:
        trajectory = await pool.start("Go.").result()
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    (turns,), (deltas,) = sink.turns.values(), sink.deltas.values()
    assert len(turns) == 2
    assert tuple(turns) == trajectory.turns
    assert turns[1].stop > turns[1].start
    assert [token for delta in deltas for token in delta.piece.ids] == list(trajectory.chains[0].ids)


async def test_a_sink_that_fails_on_a_turn_still_leaves_that_turn_in_the_trajectory() -> None:
    class Failing(MemorySink):
        async def append(self, key, turn, deltas, /) -> None:
            raise AgentkitError("disk full")

    async with Pool(Agent(ScriptedModel([CALL, "done"]), tools=[FakeTool("work", ok)]), sink=Failing()) as pool:
        trajectory = await pool.start("Go.").result()
    assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
    assert "disk full" in trajectory.error
    assert [len(turn.observations) for turn in trajectory.turns] == [1]


@pytest.mark.parametrize(
    ("error", "blame"), [(ZeroDivisionError("oops"), Blame.GRADER), (SandboxDead("gone"), Blame.ENVIRONMENT)]
)
async def test_a_fault_of_the_grader_is_blamed_on_it_and_is_no_score(error, blame) -> None:
    async def score(trajectory, env) -> float:
        raise error

    trajectory = await Agent(ScriptedModel(["x"]), env=World(), reward=score).run("Go.")
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert (trajectory.grade.status, trajectory.score, trajectory.grade.blame) == (GradeStatus.ERROR, None, blame)
    assert trajectory.outcome is Outcome.DROP


async def test_a_cancel_while_grading_seals_without_a_score() -> None:
    async def score(trajectory, env) -> float:
        await anyio.sleep(100)
        return 1.0

    sink, world = MemorySink(), World()
    async with Pool(Agent(ScriptedModel(["x"]), env=world, reward=score), sink=sink) as pool:
        actor = pool.start("Go.")
        await anyio.sleep(5)
        actor.cancel()
        trajectory = await actor.result()
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert (trajectory.grade.status, trajectory.score, trajectory.grade.blame) == (
        GradeStatus.SKIPPED,
        None,
        Blame.CALLER,
    )
    assert trajectory.outcome is Outcome.DROP
    assert sink.trajectories == [trajectory]
    assert world.closed == 1


async def test_a_reward_sees_an_open_env_and_a_frozen_trajectory() -> None:
    seen, world = [], World()

    async def score(trajectory, env) -> float:
        seen.append((env in world.open, trajectory.exit_reason, len(trajectory.turns)))
        return 1.0

    await Agent(ScriptedModel(["x"]), env=world, reward=score).run("Go.")
    assert seen == [(True, ExitReason.FINISHED, 1)]


async def test_an_env_that_answers_late_counts_as_a_tool_that_timed_out() -> None:
    class Slow:
        async def start(self, task: Task) -> None: ...

        async def step(self, action) -> Observation:
            await anyio.sleep(100)
            return Observation("late")

        async def close(self) -> None: ...

    agent = Agent(ScriptedModel(["x"] * 9), env=Slow, budget=Budget(tool_s=2, max_tool_timeouts=2))
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.TOOL_TIMEOUTS, 3)
    assert {turn.observations[0].status for turn in trajectory.turns} == {ObservationStatus.TIMEOUT}
    assert [turn.tool_s for turn in trajectory.turns] == [pytest.approx(2)] * 3


async def test_an_env_that_fails_to_answer_is_dead() -> None:
    class Broken:
        async def start(self, task: Task) -> None: ...

        async def step(self, action) -> Observation:
            raise OSError("broken pipe")

        async def close(self) -> None: ...

    trajectory = await Agent(ScriptedModel(["x"] * 9), env=Broken, outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.ENV_DEAD, Blame.ENVIRONMENT)
    assert [o.status for o in trajectory.turns[0].observations] == [ObservationStatus.ERROR]


async def test_a_child_has_no_more_time_than_its_parent_even_where_waiting_does_not_count() -> None:
    remaining = []

    async def hurry(rollout) -> None:
        remaining.append(rollout.remaining_s)
        await rollout.sample()
        remaining.append(rollout.remaining_s)

    child = Agent(
        ScriptedModel(["x"], first_token_s=1),
        loop=hurry,
        budget=Budget(trajectory_s=10, count_waiting=False),
        name="child",
    )

    async def delegate(rollout) -> None:
        await anyio.sleep(5)
        await rollout.child(child, "Do it.")

    async with Pool(
        Agent(ScriptedModel(["x"]), loop=delegate, budget=Budget(trajectory_s=12)), max_generations=1
    ) as pool:
        parent = pool.start("Go.")
        await anyio.sleep(1)
        pool.pause()
        await anyio.sleep(8)
        pool.resume()
        trajectory = await parent.result()
    assert remaining == [pytest.approx(7), pytest.approx(2)]
    assert [c.exit_reason for c in trajectory.children] == [ExitReason.FINISHED]


async def test_a_call_sees_the_deadline_that_holds() -> None:
    """Neither the model nor a tool is told of more time than the trajectory has."""
    told = []

    class Noting(ScriptedModel):
        async def sample_tokens(self, request, emit):
            told.append(request.deadline)
            return await super().sample_tokens(request, emit)

    started = anyio.current_time()
    await Agent(Noting(["x"]), budget=Budget(trajectory_s=10, generation_s=500)).run("Go.")
    await Agent(Noting(["x"]), budget=Budget(trajectory_s=500, generation_s=10)).run("Go.")
    assert told == [pytest.approx(started + 10)] * 2


async def test_messages_that_a_model_was_shown_do_not_change_under_it() -> None:
    shown = []

    class Noting(ScriptedMessageModel):
        async def sample_message(self, request, emit):
            shown.append((request.messages, len(request.messages)))
            return await super().sample_message(request, emit)

    async def twice(rollout) -> None:
        await rollout.sample()
        rollout.observe("More.")
        await rollout.sample()

    await Agent(Noting(["a", "b"]), loop=twice).run("Go.")
    assert [(len(messages), length) for messages, length in shown] == [(1, 1), (3, 3)]
    assert [message.content for message in shown[0][0]] == ["Go."]


@pytest.mark.parametrize("count_waiting", [True, False])
async def test_waiting_to_start_counts_or_not_by_choice(count_waiting) -> None:
    async def start(task: Task) -> None:
        if task.id == "slow":
            await anyio.sleep(30)

    agent = Agent(
        ScriptedModel(["x"]),
        env=World(on_start=start),
        budget=Budget(trajectory_s=10, setup_s=60, count_waiting=count_waiting),
    )
    started = anyio.current_time()
    async with Pool(agent, max_starts=1) as pool:
        pool.start(Task("slow", "Go.", budget={"trajectory_s": 1000}))
        await anyio.sleep(0.1)
        trajectory = await pool.start(Task("quick", "Go.")).result()
    waited = anyio.current_time() - started
    if count_waiting:
        assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.TRAJECTORY_TIMEOUT, Blame.INFRASTRUCTURE)
        assert waited == pytest.approx(10.1)
    else:
        assert trajectory.exit_reason is ExitReason.FINISHED
        assert waited == pytest.approx(30)


async def test_waiting_to_start_moves_no_deadline_past_the_parents() -> None:
    remaining = []

    async def start(task: Task) -> None:
        if task.id == "slow":
            await anyio.sleep(6)

    async def look(rollout) -> None:
        remaining.append((rollout.task.id, rollout.remaining_s))

    child = Agent(
        ScriptedModel(["x"]),
        env=World(on_start=start),
        loop=look,
        budget=Budget(trajectory_s=10, count_waiting=False),
        name="child",
    )

    async def delegate(rollout) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(rollout.child, child, Task("slow"))
            await anyio.sleep(0.5)
            group.start_soon(rollout.child, child, Task("quick"))

    parent = Agent(ScriptedModel(["x"]), loop=delegate, budget=Budget(trajectory_s=12))
    async with Pool(parent, max_starts=1) as pool:
        await pool.start("Go.").result()
    assert dict(remaining) == {"slow": pytest.approx(4), "quick": pytest.approx(6)}


async def test_a_factory_that_fails_is_an_exit_reason() -> None:
    def broken():
        raise OSError("no image")

    trajectory = await Agent(ScriptedModel(["x"]), env=broken, outcomes=OutcomePolicy(retries=0)).run("Go.")
    assert trajectory.exit_reason is ExitReason.ENV_START_FAILED
    assert "OSError: no image" in trajectory.error


async def test_a_child_that_hides_is_ended_before_its_parent_is_sealed() -> None:
    world = World(on_close=lambda: anyio.sleep(0.5))

    async def stays(rollout) -> None:
        await hide_behind_a_shield()

    helper = Agent(ScriptedModel(["x"]), env=world, loop=stays, budget=Budget(grace_s=1), name="helper")

    async def leave(rollout) -> None:
        rollout.start_child(helper, "Hide.")
        await anyio.sleep(1)

    async with Pool(Agent(ScriptedModel(["x"]), loop=leave)) as pool:
        trajectory = await pool.start("Go.").result()
        assert (world.made, world.closed) == (1, 1)
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert [child.exit_reason for child in trajectory.children] == [ExitReason.CANCELLED]
    assert any("loop of" in name for name in trajectory.children[0].stuck)


async def test_the_last_action_answers_who_asked() -> None:
    async with Pool(Agent(ScriptedModel(["done"], first_token_s=1))) as pool:
        actor = pool.start("Go.")
        with anyio.fail_after(10):
            assert (await actor.ask("Well?")).content == "done"


async def test_cancelling_a_parent_alone_cancels_its_child_at_once() -> None:
    helper = Agent(ScriptedModel(["w " * 500], token_s=1), name="helper")

    async def delegate(rollout) -> None:
        await rollout.child(helper, "Do it.")

    async with Pool(Agent(ScriptedModel(["x"]), loop=delegate)) as pool:
        started, actor = anyio.current_time(), pool.start("Go.")
        await anyio.sleep(20)
        actor.cancel()
        trajectory = await actor.result()
        assert anyio.current_time() - started == pytest.approx(20)
    assert (trajectory.exit_reason, trajectory.stuck) == (ExitReason.CANCELLED, ())
    assert [child.exit_reason for child in trajectory.children] == [ExitReason.CANCELLED]


async def test_no_child_begins_after_the_end() -> None:
    helper = Agent(ScriptedModel(["x"]), name="helper")

    async def late(rollout) -> None:
        rollout.finish()
        rollout.start_child(helper, "Too late.")

    trajectory = await Agent(ScriptedModel(["x"]), loop=late).run("Go.")
    assert (trajectory.exit_reason, trajectory.children) == (ExitReason.FINISHED, ())


async def test_only_the_last_action_is_acted_on() -> None:
    faults = []

    async def careless(rollout) -> None:
        first = await rollout.sample()
        await rollout.act(first)
        second = await rollout.sample()
        for which, action in enumerate((first, second, second)):
            try:
                await rollout.act(action)
            except ConfigError as fault:
                faults.append((which, str(fault)))

    trajectory = await Agent(ScriptedModel([CALL, CALL]), tools=[FakeTool("work", ok)], loop=careless).run("Go.")
    told = "rollout.act takes the action that was sampled last, once"
    assert faults == [(0, told), (2, told)]
    assert [len(turn.observations) for turn in trajectory.turns] == [1, 1]


async def test_observations_that_leave_no_room_end_the_rollout() -> None:
    class Counting(ScriptedModel):
        asked = 0

        async def sample_tokens(self, request, emit):
            self.asked += 1
            return await super().sample_tokens(request, emit)

    async def talk(_: object) -> str:
        return "word " * 5000

    model = Counting([CALL, "done"])
    trajectory = await Agent(model, tools=[FakeTool("work", talk)], budget=Budget(max_tokens=1000)).run("Go.")
    assert (trajectory.exit_reason, trajectory.blame) == (ExitReason.TOKEN_LIMIT, Blame.POLICY)
    assert model.asked == 1, "a model is not asked for nothing"
    (turn,) = trajectory.turns
    assert len(trajectory.chains[0]) == turn.stop < 1000


@pytest.mark.parametrize("on_rewrite", ["error", "new_chain"])
async def test_a_history_that_cannot_be_extended_is_an_error_or_a_new_chain(on_rewrite) -> None:
    model = ScriptedModel([CALL, "done"])

    class Rewriting:
        """A renderer whose template would rewrite what was said."""

        def __getattr__(self, name):
            return getattr(model.renderer, name)

        def bridge(self, *args, **options):
            raise NotAppendable("the template strips earlier thinking")

        def prompt(self, *args):
            return model.renderer.prompt(*args)

        def decode(self, *args):
            return model.renderer.decode(*args)

        @property
        def stop_ids(self):
            return model.renderer.stop_ids

    agent = Agent(model, tools=[FakeTool("work", ok)], renderer=Rewriting(), on_rewrite=on_rewrite)
    trajectory = await agent.run("Go.")
    if on_rewrite == "error":
        assert trajectory.exit_reason is ExitReason.INTERNAL_ERROR
        assert "strips earlier thinking" in trajectory.error
    else:
        assert trajectory.exit_reason is ExitReason.FINISHED
        assert [turn.chain for turn in trajectory.turns] == [0, 1]


async def stays(rollout) -> None:
    await hide_behind_a_shield()


@pytest.mark.parametrize("grace_s", [1, 2, 30])
async def test_a_stuck_child_holds_its_parent_no_longer_than_the_parents_grace(grace_s) -> None:
    world = World(on_close=hide_behind_a_shield)
    helper = Agent(ScriptedModel(["x"]), env=world, loop=stays, budget=Budget(grace_s=grace_s), name="helper")

    async def delegate(rollout) -> None:
        await rollout.child(helper, "Do it.")

    started = anyio.current_time()
    agent = Agent(ScriptedModel(["x"]), loop=delegate, budget=Budget(trajectory_s=10, grace_s=2))
    async with Pool(agent) as pool:
        trajectory = await pool.start("Go.").result()
    assert anyio.current_time() - started <= 12 + 1e-6
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert len(trajectory.children) == 1


async def test_stuck_children_are_ended_side_by_side() -> None:
    helper = Agent(ScriptedModel(["x"]), loop=stays, name="helper")

    async def leave(rollout) -> None:
        for _ in range(5):
            rollout.start_child(helper, "Hide.")
        await anyio.sleep(1)

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["x"]), loop=leave, budget=Budget(grace_s=2)).run("Go.")
    assert anyio.current_time() - started <= 3 + 1e-6
    assert len(trajectory.children) == 5


async def hidden_tasks() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(hide_behind_a_shield)
        await hide_behind_a_shield()


async def hidden_tasks_only() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(hidden_tasks)


@pytest.mark.parametrize("code", [hidden_tasks, hidden_tasks_only])
async def test_a_tool_is_ended_with_the_tasks_it_started(code) -> None:
    before = len(anyio.get_running_tasks())
    agent = Agent(
        ScriptedModel([CALL, "done"]),
        tools=[FakeTool("work", lambda _: code())],
        budget=Budget(trajectory_s=50, tool_s=5, grace_s=2),
    )
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, trajectory.stuck) == (ExitReason.FINISHED, ("work",))
    assert trajectory.turns[0].tool_s == pytest.approx(7)
    await anyio.sleep(0.1)
    assert len(anyio.get_running_tasks()) == before


async def poll(times: int = 300, pause_s: float = 0.01) -> None:
    """Waits for what never comes, a little at a time: cancellations of its own making, by the hundred."""
    event = anyio.Event()
    for _ in range(times):
        with anyio.move_on_after(pause_s):
            await event.wait()
    for _ in range(times):
        await anyio.sleep(pause_s)


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.01])
async def test_code_that_polls_is_not_ended_for_it(pause_s) -> None:
    class Polling(ScriptedModel):
        async def sample_tokens(self, request, emit):
            await poll(pause_s=pause_s)
            return await super().sample_tokens(request, emit)

    async def loop(rollout) -> None:
        async for action in rollout:
            await poll(pause_s=pause_s)
            await rollout.act(action)

    async def score(trajectory, env) -> float:
        await poll(pause_s=pause_s)
        return 1.0

    world = World(on_start=lambda _: poll(pause_s=pause_s), on_close=lambda: poll(pause_s=pause_s))
    tools = [FakeTool("work", lambda _: poll(pause_s=pause_s))]
    agent = Agent(Polling([CALL, "done"]), env=world, tools=tools, loop=loop, reward=score)
    async with Pool(agent) as pool:
        trajectory = await pool.start("Go.").result()
        assert pool.stuck == ()
    assert (trajectory.exit_reason, trajectory.score, trajectory.stuck) == (ExitReason.FINISHED, 1.0, ())


async def test_shielded_cleanup_that_polls_runs_to_its_end() -> None:
    log = []

    async def tidy(_: object) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await poll(100)
            log.append("tidied")

    agent = Agent(ScriptedModel([CALL, "done"]), tools=[FakeTool("work", tidy)], budget=Budget(tool_s=5, grace_s=10))
    trajectory = await agent.run("Go.")
    assert (log, trajectory.stuck) == (["tidied"], ())
    assert trajectory.turns[0].observations[0].status is ObservationStatus.TIMEOUT


async def test_ending_a_call_spares_the_tasks_of_its_loop() -> None:
    log = []

    async def background() -> None:
        await anyio.sleep(20)
        log.append("background")

    async def loop(rollout) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(background)
            await rollout.act(await rollout.sample())
            log.append("acted")

    agent = Agent(
        ScriptedModel([CALL]),
        tools=[FakeTool("work", lambda _: hidden_tasks_only())],
        loop=loop,
        budget=Budget(trajectory_s=50, tool_s=5, grace_s=2),
    )
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, trajectory.stuck) == (ExitReason.FINISHED, ("work",))
    assert log == ["acted", "background"]


@pytest.mark.parametrize("anyio_backend", [virtual_asyncio()])
async def test_a_call_that_its_loop_left_behind_is_ended_before_the_freeze() -> None:
    left, ends = [], []

    async def leave(rollout) -> None:
        action = await rollout.sample()
        left.append(asyncio.ensure_future(rollout.act(action)))
        await anyio.sleep(1)

    async def work(_: object) -> str:
        try:
            await anyio.sleep(20)
        finally:
            ends.append(anyio.current_time())
        return "late"

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel([CALL]), tools=[FakeTool("work", work)], loop=leave).run("Go.")
    assert (trajectory.exit_reason, trajectory.stuck) == (ExitReason.FINISHED, ("work",))
    await asyncio.wait(left)
    assert ends == [pytest.approx(started + 1)]


async def test_a_loop_that_is_ended_inside_a_call_goes_no_further() -> None:
    async def hide_deeper(_: object) -> None:
        with anyio.CancelScope(), anyio.CancelScope(shield=True):
            await hide_behind_a_shield()

    agent = Agent(
        ScriptedModel([CALL, "never"]), tools=[FakeTool("work", hide_deeper)], budget=Budget(trajectory_s=5, grace_s=2)
    )
    trajectory = await agent.run("Go.")
    assert (trajectory.exit_reason, len(trajectory.turns)) == (ExitReason.TRAJECTORY_TIMEOUT, 1)
    assert trajectory.turns[0].observations[0].status is ObservationStatus.SKIPPED


async def test_a_sink_that_fails_on_the_cut_turn_alone_keeps_the_trajectory() -> None:
    class Failing(MemorySink):
        async def append(self, key, turn, deltas, /) -> None:
            raise AgentkitError("disk full")

    agent = Agent(ScriptedModel(["word " * 50], token_s=0.1), budget=Budget(trajectory_s=2))
    async with Pool(agent, sink=Failing()) as pool:
        trajectory = await pool.start("Go.").result()
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert [turn.stop > turn.start for turn in trajectory.turns] == [True]


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("turn", [0, 1])
async def test_a_loop_may_cut_its_own_sample_and_go_on(paused, turn) -> None:
    class Slow(ScriptedModel):
        async def sample_tokens(self, request, emit):
            if sampled == turn and not cut:
                await anyio.sleep(50)
            return await super().sample_tokens(request, emit)

    sampled, cut = 0, []

    async def impatient(rollout) -> None:
        nonlocal sampled
        while sampled < 3:
            if paused and sampled == turn and not cut:
                pool.pause()
            with anyio.move_on_after(5) as scope:
                await rollout.sample()
                sampled += 1
            if scope.cancelled_caught:
                cut.append(sampled)
                pool.resume()
            rollout.observe("Go on.")

    agent = Agent(Slow(["one", "two", "three", "four"]), loop=impatient)
    async with Pool(agent) as pool:
        trajectory = await pool.start("Go.").result()
    assert (trajectory.exit_reason, cut) == (ExitReason.FINISHED, [turn])
    (chain,) = trajectory.chains
    empty = [turn.index for turn in trajectory.turns if turn.stop == turn.start]
    assert empty == ([] if paused else [turn]), "a generation that was begun is a turn, a wait is none"
    text = agent.renderer.decode(chain.ids)
    assert text.count("<|im_start|>assistant") == len(trajectory.turns)
    assert text.count("<|im_end|>") >= text.count("<|im_start|>") - 1, "every turn is closed"


@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_process_ends_after_code_that_never_would(loop) -> None:
    program = """
import sys, anyio
from agentkit import Agent, Budget
from agentkit.models import ScriptedModel
from agentkit.testing import FakeTool
async def stubborn(_):
    while True:
        try:
            await anyio.sleep(0.01)
        except BaseException:
            pass
agent = Agent(
    ScriptedModel(['<tool_call>\\n{"name": "work", "arguments": {}}\\n</tool_call>', "done"]),
    tools=[FakeTool("work", stubborn)], budget=Budget(tool_s=0.2, grace_s=0.2),
)
print(anyio.run(agent.run, "Go.", backend=sys.argv[1]).exit_reason)
"""
    result = subprocess.run([sys.executable, "-c", program, loop], capture_output=True, text=True, timeout=30)
    assert (result.stdout.strip(), result.returncode) == ("finished", 0), result.stderr
    assert "Traceback" not in result.stderr
