"""Cancel, and fail, at every single await of a run with envs, tools, a reward and a sink (B4, B5, R1).

The sweeps print how many awaits they visited.
"""

import asyncio
import contextlib
import itertools

import anyio
import pytest
from attrs import evolve

from agentkit import Agent, Budget, ExitReason, OutcomePolicy, Pool, Task
from agentkit.models import ScriptedModel
from agentkit.protocols import GradeStatus
from agentkit.testing import (
    FakeTool,
    MemorySink,
    Steps,
    World,
    hide_behind_a_shield,
    swallow_cancellation,
)

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CALL = '<tool_call>\n{{"name": "{}", "arguments": {{}}}}\n</tool_call>'
SCRIPT = [CALL.format("alone"), CALL.format("side") + "\n" + CALL.format("by_side"), CALL.format("alone"), "Done."]
TASKS = [Task("a", "First."), Task("b", "Second.")]
BUDGET = Budget(trajectory_s=100, tool_s=5, reward_s=5, grace_s=2)


async def nap(_: object = None) -> str:
    await anyio.sleep(0.1)
    return "rested"


class Scenario:
    """One pool of two groups of two, everything in it awaiting something; `bad` is what its odd tool does."""

    def __init__(self, bad=None, *, on_close=nap, fault=None) -> None:
        self.world = World(on_start=nap, on_close=self._close)
        self.sink = MemorySink(lambda: anyio.sleep(0.01))
        self.fault = fault or (lambda: None)
        self._on_close = on_close
        self._bad = bad

    async def _close(self) -> None:
        await self._on_close()

    async def _tool(self, _: object) -> str:
        self.fault()
        await nap()
        self.fault()
        if self._bad is not None:
            await self._bad()
        return "ok"

    async def _score(self, trajectory, env) -> float:
        self.fault()
        await nap()
        self.fault()
        return 1.0

    def agent(self) -> Agent:
        tools = [
            FakeTool("alone", self._tool),
            FakeTool("side", self._tool, parallel=True),
            FakeTool("by_side", nap, parallel=True),
        ]
        return Agent(
            ScriptedModel(SCRIPT, token_s=0.01),
            env=self.world,
            tools=tools,
            reward=self._score,
            budget=BUDGET,
        )

    async def run(self) -> None:
        async with Pool(self.agent(), max_rollouts=3, max_starts=2, group_size=2, sink=self.sink) as pool:
            async for _ in pool.run(TASKS):
                pass

    def check(self) -> None:
        """B4 and R1: every env closed, everything that began sealed once, and what was sampled is there."""
        assert not self.world.open
        assert self.world.made == self.world.closed
        begun = {(key.task_id, key.index) for key in self.sink.begun}
        sealed = [(t.key.task_id, t.key.index) for t in self.sink.trajectories]
        assert begun <= set(sealed), "everything that began is sealed"
        assert len(sealed) == len(set(sealed)), "once"
        for trajectory in self.sink.trajectories:
            sampled = sum(turn.stop - turn.start for turn in trajectory.turns)
            assert sampled == sum(sum(chain.response_mask) for chain in trajectory.chains)
            for turn in trajectory.turns:
                assert len(turn.observations) in (0, len(turn.action.attempts))


async def _settle() -> list[str]:
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    return sorted(str(info.name) for info in anyio.get_running_tasks())


def _run(steps: Steps, loop: str, scenario: Scenario, guarded) -> bool:
    """Run the scenario with `guarded` around it; whether tasks of ours were left."""

    async def main() -> bool:
        before = await _settle()
        await guarded(scenario.run)
        return await _settle() == before

    backend, options = steps.on_asyncio() if loop == "asyncio" else steps.on_trio()
    return anyio.run(main, backend=backend, backend_options=options)


def _count(loop: str, make) -> int:
    steps = Steps()

    async def plain(run) -> None:
        await run()

    scenario = make()
    assert _run(steps, loop, scenario, plain)
    assert len(scenario.sink.trajectories) == 4
    return steps.count


def _sweep(loop: str, make, how: str, stride: int) -> int:
    total = _count(loop, make)
    visited = 0
    for at in range(1, total, stride):
        steps = Steps(at)
        scenario = make()

        async def by_scope(run, steps=steps) -> None:
            with anyio.CancelScope() as scope:
                steps.action = scope.cancel
                await run()

        async def natively(run, steps=steps) -> None:
            task = asyncio.ensure_future(run())

            def cancel() -> None:
                task.cancel()
                if how == "twice":
                    asyncio.get_running_loop().call_later(0.05, task.cancel)

            steps.action = cancel
            with contextlib.suppress(asyncio.CancelledError):
                await task

        clean = _run(steps, loop, scenario, by_scope if how == "scope" else natively)
        if not steps.fired:
            continue
        visited += 1
        scenario.check()
        assert clean, f"tasks were left after a cancel at step {at}"
    return visited


POLITE = pytest.param(Scenario, 1, id="polite")
SWALLOWS = pytest.param(lambda: Scenario(swallow_cancellation), 7, id="swallows")
SHIELDS = pytest.param(lambda: Scenario(hide_behind_a_shield), 7, id="shields")


async def _raise_on_close() -> None:
    await nap()
    raise RuntimeError("cleanup failed")


RAISES = pytest.param(lambda: Scenario(on_close=_raise_on_close), 7, id="raises-on-cleanup")


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(("make", "stride"), [POLITE, SWALLOWS, SHIELDS, RAISES])
def test_cancelling_by_scope_at_every_await_leaves_nothing(loop, make, stride, capsys) -> None:
    visited = _sweep(loop, make, "scope", stride)
    with capsys.disabled():
        print(f" [{visited} awaits]", end="")
    assert visited >= 24


@pytest.mark.parametrize("how", ["once", "twice"])
@pytest.mark.parametrize(("make", "stride"), [POLITE, SWALLOWS, SHIELDS, RAISES])
def test_cancelling_natively_at_every_await_leaves_nothing(make, stride, how, capsys) -> None:
    visited = _sweep("asyncio", make, how, stride)
    with capsys.disabled():
        print(f" [{visited} awaits]", end="")
    assert visited >= 24


class Boom(Exception):
    """Planted."""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_fault_at_every_point_of_user_code_spares_the_siblings(loop, capsys) -> None:
    for at in itertools.count(1):
        points = itertools.count(1)
        hit = []

        def fault(points=points, at=at, hit=hit) -> None:
            if next(points) == at:
                hit.append(at)
                raise Boom(f"at {at}")

        scenario = Scenario(fault=fault)

        async def plain(run) -> None:
            await run()

        assert _run(Steps(), loop, scenario, plain)
        scenario.check()
        trajectories = scenario.sink.trajectories
        assert len(trajectories) == 4
        if not hit:
            break
        assert all(t.exit_reason is ExitReason.FINISHED for t in trajectories), "a tool's fault is an observation"
        failed = [t for t in trajectories if t.grade.status is GradeStatus.ERROR]
        errors = [o for t in trajectories for turn in t.turns for o in turn.observations if "Boom" in o.content]
        assert len(failed) + len(errors) == 1, "one fault, in one place"
        assert all(t.score == 1.0 for t in trajectories if t not in failed), "never a zero"
    with capsys.disabled():
        print(f" [{at - 1} faults]", end="")
    assert at > 16


class FaultyModel:
    """Samples as scripted, and raises at one of its awaits."""

    def __init__(self, at: int) -> None:
        self._inner = ScriptedModel(SCRIPT, token_s=0.01)
        self._at = at
        self.emits = 0
        self.renderer, self.parser = self._inner.renderer, self._inner.parser

    async def sample_tokens(self, request, emit):
        def counting(chunk) -> None:
            emit(chunk)
            self.emits += 1
            if self.emits == self._at:
                raise Boom(f"after chunk {self._at}")

        return await self._inner.sample_tokens(request, counting)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_model_fault_after_any_chunk_ends_one_rollout_with_what_it_sampled(loop) -> None:
    for at in range(1, 200):
        model = FaultyModel(at)
        scenario = Scenario()
        agent = scenario.agent

        def with_model(agent=agent, model=model) -> Agent:
            made = agent()
            return evolve(made, model=model, outcomes=OutcomePolicy(retries=0))

        scenario.agent = with_model

        async def plain(run) -> None:
            await run()

        assert _run(Steps(), loop, scenario, plain)
        scenario.check()
        failed = [t for t in scenario.sink.trajectories if t.exit_reason is ExitReason.MODEL_ERROR]
        if model.emits < at:
            break
        ((trajectory),) = failed
        assert "Boom" in trajectory.error
        assert trajectory.attempts == ()
        assert any(turn.stop > turn.start for turn in trajectory.turns)
    assert at > 20
