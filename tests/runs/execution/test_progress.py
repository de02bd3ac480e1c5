"""How far a run is: counted against a slow oracle, and honest about what nobody can know yet."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.journal import Summary
from agentkit.protocols import (
    Blame,
    Chain,
    ChainDelta,
    ExitReason,
    Grade,
    GradeStatus,
    RolloutKey,
    Score,
    Span,
    SpanKind,
    Trajectory,
)
from agentkit.runs import StopLevel
from agentkit.runs.progress import Meter
from agentkit.testing import virtual_asyncio


def delta(sampled: int, observed: int = 2) -> ChainDelta:
    size = sampled + observed
    spans = (Span(0, sampled, SpanKind.SAMPLED, 0), Span(sampled, size, SpanKind.OBSERVATION, 0))
    return ChainDelta(0, 0, Chain.of([1] * size, [1] * sampled + [0] * observed, [0.0] * size, spans))


def sealed(task: str, index: int = 0, reason=ExitReason.FINISHED, score: float | None = None, blame=None) -> Trajectory:
    grade = (
        None
        if score is None and blame is None
        else Grade(GradeStatus.OK, None if score is None else Score(score), blame)
    )
    return Trajectory(RolloutKey(task, index), (), (), (), reason, grade=grade)


def summary(task: str, index: int, reason: ExitReason, score: float | None) -> Summary:
    return Summary(RolloutKey(task, index), reason, None, None, score, "train", 1, 1, 1, 1.0)


async def test_a_fresh_run_knows_nothing_and_says_so() -> None:
    progress = Meter(10).read()
    assert (progress.done, progress.left, progress.live, progress.eta_s, progress.mean_score) == (0, 10, 0, None, None)
    assert Meter(None).read().left is None


async def test_the_rest_takes_as_long_as_what_has_ended_suggests() -> None:
    meter = Meter(10, done_before=2)
    for number in range(4):
        await anyio.sleep(5)
        meter.begun(RolloutKey(f"t{number}", 0))
        meter.sealed(sealed(f"t{number}"))
        assert meter.read().eta_s == (None if number < 2 else pytest.approx((10 - 2 - number - 1) * 5))


async def test_nothing_left_takes_no_time_and_a_drained_run_promises_none() -> None:
    meter = Meter(1)
    meter.begun(RolloutKey("a", 0))
    meter.sealed(sealed("a"))
    assert meter.read().eta_s == 0
    meter = Meter(100)
    for number in range(9):
        meter.begun(RolloutKey(f"t{number}", 0))
    for number in range(5):
        meter.sealed(sealed(f"t{number}"))
    meter.stopping = StopLevel.DRAIN
    assert (meter.read().left, meter.read().eta_s) == (4, None)


async def test_what_is_to_be_made_again_and_replacements_are_not_done() -> None:
    meter = Meter(10, group_size=2)
    meter.sealed(sealed("a", 0))
    meter.sealed(sealed("a", 1, ExitReason.CANCELLED))
    meter.sealed(sealed("b", 0, blame=Blame.CALLER))  # left while it was graded
    meter.sealed(sealed("b", 1, ExitReason.MODEL_ERROR))
    meter.sealed(sealed("b", 2))  # replaces one of the group
    progress = meter.read()
    assert progress.done == 2
    assert progress.reasons == {ExitReason.FINISHED: 3, ExitReason.CANCELLED: 1, ExitReason.MODEL_ERROR: 1}


async def test_rates_are_those_of_the_last_half_minute() -> None:
    meter = Meter(10)
    for _ in range(100):
        await anyio.sleep(1)
        meter.turned([delta(30)])
        meter.read()
    assert meter.read().tokens_per_s == pytest.approx(30, rel=0.1)
    assert meter.read().turns_per_s == pytest.approx(1, rel=0.1)
    for _ in range(60):
        await anyio.sleep(1)
        meter.read()
    progress = meter.read()
    assert progress.tokens_per_s == progress.turns_per_s == 0
    assert (progress.sampled, progress.turns) == (3000, 100), "only what the policy sampled counts"


async def test_the_oldest_rollout_is_named_with_its_age_through_its_retries() -> None:
    meter = Meter(10)
    meter.begun(RolloutKey("old", 0))
    await anyio.sleep(60)
    meter.begun(RolloutKey("young", 0))
    meter.begun(RolloutKey("old", 0, attempt=1))
    oldest = meter.read().oldest
    assert oldest is not None
    assert (oldest[0].task_id, oldest[1]) == ("old", pytest.approx(60))
    assert meter.read().live == 2
    meter.sealed(sealed("old"))
    oldest = meter.read().oldest
    assert oldest is not None
    assert oldest[0].task_id == "young"


reasons = st.sampled_from(ExitReason)
scores = st.none() | st.sampled_from([0.0, 0.5, 1.0])


@given(st.lists(st.tuples(reasons, scores), max_size=5), st.lists(st.tuples(reasons, scores), max_size=8))
def test_counts_are_those_of_all_sittings_together(before: list, now: list) -> None:
    async def main() -> None:
        meter = Meter(
            99,
            done_before=len(before),
            before=[summary("before", index, *each) for index, each in enumerate(before)],
        )
        for number, (reason, score) in enumerate(now):
            meter.begun(RolloutKey(str(number), 0))
            meter.sealed(sealed(str(number), 0, reason, score))
        progress = meter.read()
        graded = [score for _, score in before + now if score is not None]
        assert progress.reasons == {
            reason: sum(each is reason for each, _ in before + now) for reason in {each for each, _ in before + now}
        }
        assert progress.mean_score == (pytest.approx(sum(graded) / len(graded)) if graded else None)
        assert progress.done == len(before) + sum(reason is not ExitReason.CANCELLED for reason, _ in now)
        assert progress.done_before == len(before)
        assert progress.live == 0

    name, options = virtual_asyncio()
    anyio.run(main, backend=name, backend_options=options)
