"""Budgets hold: B1 (sealed on time), B2 (nothing sampled is lost), B3 (never extended), B6 (the end is final)."""

import math
import threading
import time

import anyio
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentkit import Agent, Budget, ConfigError, ExitReason, Observation, Pool, Task, user
from agentkit.models import ScriptedModel
from agentkit.protocols import Finish, FinishReason, GradeStatus, TokenChunk
from agentkit.testing import (
    FakeTool,
    MemorySink,
    World,
    hide_behind_a_shield,
    swallow_cancellation,
    virtual_asyncio,
    virtual_trio,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CALL = '<tool_call>\n{"name": "work", "arguments": {}}\n</tool_call>'
LOOPS = {"asyncio": virtual_asyncio, "trio": virtual_trio}


def run(loop: str, main, *args):
    backend, options = LOOPS[loop]()
    return anyio.run(main, *args, backend=backend, backend_options=options)


async def misbehave(kind: str, seconds: float) -> None:
    if kind == "swallow":
        await swallow_cancellation()
    elif kind == "shield":
        await hide_behind_a_shield()
    elif kind == "raise":
        raise RuntimeError("planted")
    elif kind == "late cleanup":
        try:
            await anyio.sleep(seconds)
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(seconds)
    else:
        await anyio.sleep(seconds)


behaviours = st.tuples(
    st.sampled_from(["sleep", "sleep", "swallow", "shield", "raise", "late cleanup"]), st.floats(0, 50, width=16)
)


class Misbehaving:
    """A model that samples two tokens, misbehaves, and ends with a tool call or without."""

    def __init__(self, behaviour, turns: int) -> None:
        self._inner = ScriptedModel([CALL] * turns + ["done"])
        self._behaviour = behaviour
        self.renderer, self.parser = self._inner.renderer, self._inner.parser

    async def sample_tokens(self, request, emit):
        await misbehave(*self._behaviour)
        return await self._inner.sample_tokens(request, emit)


@pytest.mark.parametrize("loop", LOOPS)
@settings(max_examples=60)
@given(
    start=behaviours,
    model=behaviours,
    work=behaviours,
    grade=behaviours,
    close=behaviours,
    loop_end=behaviours,
    limits=st.tuples(*[st.floats(0, 40, width=16)] * 6),
    turns=st.integers(0, 3),
)
@example(
    start=("sleep", 0), model=("swallow", 0), work=("sleep", 0), grade=("shield", 0), close=("shield", 0),
    loop_end=("shield", 0), limits=(10, 3, 4, 2, 5, 1), turns=2,
)  # fmt: skip
def test_a_rollout_is_sealed_by_its_deadline_and_grace_whatever_user_code_does(
    loop, start, model, work, grade, close, loop_end, limits, turns
) -> None:
    trajectory_s, setup_s, generation_s, tool_s, reward_s, grace_s = limits
    budget = Budget(
        trajectory_s=trajectory_s,
        setup_s=setup_s,
        generation_s=generation_s,
        tool_s=tool_s,
        reward_s=reward_s,
        grace_s=grace_s,
    )

    async def score(trajectory, env) -> float:
        await misbehave(*grade)
        return 1.0

    async def react(rollout) -> None:
        async for action in rollout:
            await rollout.act(action)
        await misbehave(*loop_end)

    world = World(on_start=lambda _: misbehave(*start), on_close=lambda: misbehave(*close))
    agent = Agent(
        Misbehaving(model, turns),
        env=world,
        tools=[FakeTool("work", lambda _: misbehave(*work))],
        reward=score,
        loop=react,
        budget=budget,
    )

    class Timed(MemorySink):
        async def seal(self, trajectory, /) -> None:
            times.append((trajectory, anyio.current_time()))

    times: list = []

    async def main() -> None:
        begun = anyio.current_time()
        async with Pool(agent, sink=Timed()) as pool:
            trajectories = [t async for t in pool.run([Task("t", "Go.")])]
        ended = anyio.current_time()
        ((sealed, at),) = times
        assert trajectories == [sealed]
        limit = trajectory_s + reward_s + grace_s
        before = sum(attempt.seconds + 2**k + grace_s for k, attempt in enumerate(sealed.attempts))
        assert at - begun <= before + limit + 1e-6
        assert ended - begun <= before + limit + grace_s + 1e-6
        assert sealed.timings.total_s <= limit + 1e-6
        assert all(attempt.seconds <= limit + 1e-6 for attempt in sealed.attempts)
        assert not world.open

    run(loop, main)


async def test_what_was_sampled_before_a_deadline_is_kept_with_its_logprobs() -> None:
    model = ScriptedModel(["word " * 100], chunk_tokens=3, token_s=1.0)
    trajectory = await Agent(model, budget=Budget(generation_s=30.5)).run("Go.")
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    (turn,) = trajectory.turns
    (chain,) = trajectory.chains
    assert 24 <= turn.stop - turn.start <= 33
    assert list(chain.response_mask[turn.start : turn.stop]) == [1] * (turn.stop - turn.start)
    assert all(logprob < 0 for logprob in chain.logprobs[turn.start : turn.stop])
    assert turn.finish is FinishReason.ABORTED


@pytest.mark.parametrize("stage", ["trajectory", "caller"])
async def test_a_partial_turn_survives_every_kind_of_end(stage) -> None:
    sink = MemorySink()
    agent = Agent(
        ScriptedModel(["word " * 100], token_s=1.0),
        budget=Budget(trajectory_s=30 if stage == "trajectory" else 1000),
    )
    with anyio.move_on_after(30.5):
        async with Pool(agent, sink=sink) as pool:
            await pool.start("Go.").result()
    (trajectory,) = sink.trajectories
    expected = ExitReason.TRAJECTORY_TIMEOUT if stage == "trajectory" else ExitReason.CANCELLED
    assert trajectory.exit_reason is expected
    assert 20 <= sum(trajectory.chains[0].response_mask) <= 32


@pytest.mark.parametrize("inner", ["tool_s", "generation_s", "setup_s"])
async def test_a_nested_limit_never_extends_the_trajectory(inner) -> None:
    budget = Budget(trajectory_s=10, grace_s=1, **{inner: 500})
    world = World(on_start=(lambda _: anyio.sleep(100)) if inner == "setup_s" else None)
    script = [CALL, "done"]
    agent = Agent(
        ScriptedModel(script, token_s=100 if inner == "generation_s" else 0),
        env=world,
        tools=[FakeTool("work", lambda _: anyio.sleep(100))],
        budget=budget,
    )
    started = anyio.current_time()
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert anyio.current_time() - started == pytest.approx(10)


async def test_a_child_lives_within_what_remains_of_its_parent() -> None:
    slow = Agent(ScriptedModel(["w " * 50], token_s=1), budget=Budget(trajectory_s=10_000), name="slow")

    async def delegate(rollout) -> None:
        async for _ in rollout:
            await anyio.sleep(5)
            await rollout.child(slow, "Do it.")

    started = anyio.current_time()
    trajectory = await Agent(ScriptedModel(["go"] * 5), loop=delegate, budget=Budget(trajectory_s=20)).run("Go.")
    assert anyio.current_time() - started == pytest.approx(20)
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    (child,) = trajectory.children
    assert child.exit_reason in (ExitReason.TRAJECTORY_TIMEOUT, ExitReason.CANCELLED)
    assert sum(child.chains[0].response_mask) >= 1, "what the child sampled is kept (B2)"


async def test_a_tools_own_limit_narrows_the_budget_and_never_widens_it() -> None:
    for own, limit in ((2.0, 2.0), (50.0, 5.0)):
        agent = Agent(
            ScriptedModel([CALL, "done"]),
            tools=[FakeTool("work", lambda _: anyio.sleep(100), timeout_s=own)],
            budget=Budget(tool_s=5),
        )
        trajectory = await agent.run("Go.")
        assert trajectory.turns[0].tool_s == pytest.approx(limit)
        assert trajectory.turns[0].observations[0].content == f"Timed out after {limit:g} s."
        assert trajectory.exit_reason is ExitReason.FINISHED


async def test_stubborn_tools_are_abandoned_named_and_survived() -> None:
    for stubborn in (swallow_cancellation, hide_behind_a_shield):
        agent = Agent(
            ScriptedModel([CALL, "done"]),
            tools=[FakeTool("work", lambda _, code=stubborn: code())],
            budget=Budget(tool_s=5, grace_s=2),
        )
        started = anyio.current_time()
        trajectory = await agent.run("Go.")
        assert trajectory.exit_reason is ExitReason.FINISHED
        assert trajectory.stuck == ("work",)
        assert anyio.current_time() - started <= 5 + 2 + 5 + 2


async def test_time_spent_waiting_for_a_permit_counts_or_not_by_choice() -> None:
    for count_waiting, reason in ((True, ExitReason.TRAJECTORY_TIMEOUT), (False, ExitReason.FINISHED)):
        agent = Agent(
            ScriptedModel(["one two three"], first_token_s=8),
            budget=Budget(trajectory_s=10, count_waiting=count_waiting),
        )
        async with Pool(agent, max_generations=1) as pool:
            trajectories = await pool.run([Task("a", "Go."), Task("b", "Go.")])
        assert [t.exit_reason for t in trajectories] == [ExitReason.FINISHED, reason]
        assert trajectories[1].timings.queued_s >= 8 or reason is ExitReason.TRAJECTORY_TIMEOUT


async def test_a_pause_of_the_trainer_counts_or_not_by_choice() -> None:
    for count_waiting, reason in ((True, ExitReason.TRAJECTORY_TIMEOUT), (False, ExitReason.FINISHED)):
        agent = Agent(
            ScriptedModel([CALL, "done"], token_s=0.1),
            tools=[FakeTool("work", lambda _: anyio.sleep(1))],
            budget=Budget(trajectory_s=20, count_waiting=count_waiting),
        )
        async with Pool(agent) as pool:
            actor = pool.start("Go.")
            await anyio.sleep(1.5)
            pool.pause()
            await anyio.sleep(30)
            pool.resume()
            trajectory = await actor.result()
        assert trajectory.exit_reason is reason


class Greedy:
    """A loop's author who catches everything and samples on after the end."""

    def __init__(self) -> None:
        self.samples = 0

    async def __call__(self, rollout) -> None:
        while True:
            try:
                await rollout.sample()
                self.samples += 1
                rollout.observe("go on")
            except BaseException:
                pass


async def test_code_that_catches_everything_cannot_sample_after_the_end() -> None:
    greedy = Greedy()
    started = anyio.current_time()
    agent = Agent(ScriptedModel(["x"] * 50), loop=greedy, budget=Budget(max_turns=3, trajectory_s=1000, grace_s=5))
    trajectory = await agent.run("Go.")
    assert trajectory.exit_reason is ExitReason.TURN_LIMIT
    assert greedy.samples == 3 == len(trajectory.turns)
    assert anyio.current_time() - started <= 6


async def test_a_zombie_model_cannot_add_to_a_sealed_trajectory() -> None:
    pushed = []

    class Zombie:
        renderer, parser = ScriptedModel(["x"]).renderer, ScriptedModel(["x"]).parser

        async def sample_tokens(self, request, emit):
            emit(TokenChunk([65, 66], [-0.1, -0.2]))
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(100)
            finally:
                try:
                    emit(TokenChunk([67], [-0.1]))
                    pushed.append("late")
                except BaseException:
                    pushed.append("refused")
            return Finish()

    trajectory = await Agent(Zombie(), budget=Budget(generation_s=5, grace_s=2)).run("Go.")
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert sum(trajectory.chains[0].response_mask) == (3 if pushed == ["late"] else 2)
    assert len(trajectory.turns) == 1
    assert trajectory.turns[0].stop - trajectory.turns[0].start == sum(trajectory.chains[0].response_mask)


async def test_a_chain_never_outgrows_max_tokens() -> None:
    class Deaf(ScriptedModel):
        async def sample_tokens(self, request, emit):
            for _ in range(1000):
                emit(TokenChunk([65] * 7, [-0.5] * 7))
                await anyio.sleep(0.01)
            return Finish()

    trajectory = await Agent(Deaf(["x"]), budget=Budget(max_tokens=100)).run("Go.")
    assert trajectory.exit_reason is ExitReason.TOKEN_LIMIT
    assert len(trajectory.chains[0]) == 100
    assert trajectory.turns[0].finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("field", "value"),
    [("tool_s", -1), ("max_turns", 0), ("grace_s", math.nan), ("trajectory_s", "ten"), ("max_tokens", True)],
)
def test_a_bad_limit_is_one_clear_error(field, value) -> None:
    with pytest.raises(ConfigError, match=rf"budget\.{field} must be a number >= .*found"):
        Budget(**{field: value})


def test_an_unknown_limit_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'tool_ss': did you mean 'tool_s'"):
        Budget().override({"tool_ss": 3})


@pytest.mark.slow
async def test_a_tool_that_blocks_a_thread_holds_nobody() -> None:
    from agentkit import tool

    release = threading.Event()

    @tool
    def block() -> str:
        """Block."""
        release.wait(30)
        return "late"

    call = CALL.replace("work", "block")
    agent = Agent(ScriptedModel([call, "done"]), tools=[block], budget=Budget(tool_s=0.3, grace_s=0.3))
    started = time.monotonic()
    async with Pool(agent) as pool:
        trajectories = await pool.run([Task(str(i), "Go.") for i in range(60)])
        stuck = pool.stuck
    assert time.monotonic() - started < 15
    assert {t.exit_reason for t in trajectories} == {ExitReason.FINISHED}
    assert all(t.turns[0].observations[0].status == "timeout" for t in trajectories)
    assert sum("block" in name for name in stuck) == 60, "every stuck thread is named"
    release.set()


@pytest.mark.slow
async def test_a_tool_that_waits_for_an_uncancellable_thread_does_not_hold_the_seal() -> None:
    release = threading.Event()

    async def body(_: object) -> Observation:
        await anyio.to_thread.run_sync(release.wait, 5)
        return Observation("late")

    agent = Agent(
        ScriptedModel([CALL, "done"]), tools=[FakeTool("work", body)], budget=Budget(trajectory_s=0.5, grace_s=0.3)
    )
    started = time.monotonic()
    trajectory = await agent.run("Go.")
    assert time.monotonic() - started < 3
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert trajectory.stuck
    release.set()
    await anyio.sleep(0.2)


async def test_a_reward_has_its_own_limit_and_never_becomes_a_zero() -> None:
    async def slow(trajectory, env) -> float:
        await anyio.sleep(100)
        return 1.0

    trajectory = await Agent(ScriptedModel(["done"]), reward=slow, budget=Budget(reward_s=3)).run("Go.")
    assert (trajectory.grade.status, trajectory.score) == (GradeStatus.TIMEOUT, None)
    assert trajectory.outcome == "drop"


async def test_a_trajectory_that_ran_out_of_time_is_still_graded() -> None:
    async def score(trajectory, env) -> float:
        return float(len(trajectory.turns))

    agent = Agent(
        ScriptedModel([CALL] * 9),
        tools=[FakeTool("work", lambda _: anyio.sleep(4))],
        reward=score,
        budget=Budget(trajectory_s=10),
    )
    trajectory = await agent.run(Task("t", (user("Go."),)))
    assert (trajectory.exit_reason, trajectory.score) == (ExitReason.TRAJECTORY_TIMEOUT, 3.0)
