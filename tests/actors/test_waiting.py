"""Time in which a model waits for its trainer: free or on the budget, as the budget says, and never without an end."""

import anyio
import pytest

from agentkit import Agent, Budget, ExitReason, Pool
from agentkit.parsing import HermesParser
from agentkit.protocols import Finish, TokenChunk
from agentkit.tokens import byte_chatml

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Syncing:
    """Samples, waits `wait_s` for its trainer, works `work_s`, and samples the rest."""

    def __init__(self, wait_s: float, work_s: float = 1.0, *, obeys: bool = True) -> None:
        self.wait_s, self.work_s, self.obeys = wait_s, work_s, obeys

    async def sample_tokens(self, request, emit):
        emit(TokenChunk([104], [-0.5], 1))
        with request.waiting(), request.waiting():
            if self.obeys:
                await anyio.sleep(self.wait_s)
            else:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(self.wait_s)
        await anyio.sleep(self.work_s)
        emit(TokenChunk([105, min(request.stop_ids)], [-0.25, -0.125], 2))
        return Finish()


def agent(model, **budget):
    return Agent(model, renderer=byte_chatml(), parser=HermesParser(), budget=Budget(**budget))


async def run(agent):
    started = anyio.current_time()
    trajectory = await agent.run("hi")
    return trajectory, anyio.current_time() - started


async def test_a_free_wait_moves_both_deadlines():
    free = agent(Syncing(500), trajectory_s=10, generation_s=5, count_waiting=False)
    trajectory, took = await run(free)
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert took == pytest.approx(501)
    (turn,) = trajectory.turns
    assert (turn.queued_s, turn.generation_s) == pytest.approx((500, 1))
    assert trajectory.timings.queued_s == pytest.approx(500)
    assert [span.policy_version for span in trajectory.chains[0].spans if span.policy_version] == [1, 2]


async def test_a_wait_that_counts_ends_with_the_generation_and_is_told_apart():
    trajectory, took = await run(agent(Syncing(500), trajectory_s=10, generation_s=5))
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert took == pytest.approx(5)
    assert trajectory.turns[0].queued_s == pytest.approx(5)
    assert sum(trajectory.chains[0].response_mask) == 1


async def test_after_a_free_wait_the_limits_go_on_where_they_stood():
    late = agent(Syncing(500, work_s=100), trajectory_s=50, generation_s=20, count_waiting=False)
    trajectory, took = await run(late)
    assert trajectory.exit_reason is ExitReason.GENERATION_TIMEOUT
    assert took == pytest.approx(520)
    late = agent(Syncing(500, work_s=100), trajectory_s=10, generation_s=20, count_waiting=False)
    trajectory, took = await run(late)
    assert trajectory.exit_reason is ExitReason.TRAJECTORY_TIMEOUT
    assert took == pytest.approx(510)


async def test_code_that_will_not_end_after_a_free_wait_is_ended_with_its_grace():
    class Stubborn(Syncing):
        async def sample_tokens(self, request, emit):
            with request.waiting():
                await anyio.sleep(self.wait_s)
            with anyio.CancelScope(shield=True):
                await anyio.sleep(10_000)
            return Finish()

    stubborn = agent(Stubborn(500), trajectory_s=50, generation_s=20, grace_s=5, count_waiting=False)
    trajectory, took = await run(stubborn)
    assert took <= 500 + 50 + 5 + 1
    assert trajectory.stuck


async def test_cancelling_ends_a_free_wait():
    free = agent(Syncing(1e6), trajectory_s=10, count_waiting=False)
    async with Pool(free) as pool:
        actor = pool.start("hi")
        await anyio.sleep(100)
        actor.cancel()
        trajectory = await actor.result()
    assert trajectory.exit_reason is ExitReason.CANCELLED
    assert sum(trajectory.chains[0].response_mask) == 1


async def test_a_wait_left_open_ends_with_the_generation():
    class Leaves(Syncing):
        async def sample_tokens(self, request, emit):
            request.waiting().__enter__()
            await anyio.sleep(100)
            emit(TokenChunk([105, min(request.stop_ids)], [-0.25, -0.125], 2))
            return Finish()

    trajectory, _took = await run(agent(Leaves(0), trajectory_s=10, max_turns=1, count_waiting=False))
    assert trajectory.exit_reason is ExitReason.FINISHED
    assert trajectory.turns[0].queued_s == pytest.approx(100)
