"""Scores: finite or refused; several rewards as one."""

import math
from fractions import Fraction

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import Action, ExitReason, Observation, Reward, RolloutKey, Score, Task, Trajectory, Turn
from agentkit.rewards import answer_of, as_score, exact_match, weighted

FINITE = st.floats(-1e6, 1e6)


def trajectory_of(*turns: Turn, **data: object) -> Trajectory:
    return Trajectory(RolloutKey("t", 0), (), (), turns, ExitReason.FINISHED, task=Task("t", data=data))


@pytest.mark.parametrize(
    ("value", "expected"), [(1, 1.0), (True, 1.0), (False, 0.0), (0.5, 0.5), (Fraction(1, 4), 0.25), (-0.0, 0.0)]
)
def test_numbers_become_scores(value, expected):
    score = as_score(value)
    assert score == Score(expected)
    assert type(score.value) is float


def test_a_score_passes_unchanged():
    score = Score(1.0, (0.5, 0.5), {0: (0.0, 1.0)}, {"m": 2.0})
    assert as_score(score) is score


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_by_place(bad):
    for value, where in [
        (bad, "score.value"),
        (Score(bad), "score.value"),
        (Score(0.0, turns=(0.0, bad)), r"score.turns\[1\]"),
        (Score(0.0, tokens={0: (0.0,), 2: (0.0, bad)}), r"score.tokens\[2\]\[1\]"),
        (Score(0.0, metrics={"m": bad}), r"score.metrics\['m'\]"),
    ]:
        with pytest.raises(ValueError, match=f"^{where} must be finite, found {bad!r}"):
            as_score(value)


@pytest.mark.parametrize("value", [None, "1", [1.0], {"score": 1}])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="must return a number or a Score, found"):
        as_score(value)


def gives(value: float | Score) -> Reward[object]:
    async def reward(trajectory: Trajectory, env: object, /) -> float | Score:
        return value

    return reward


@given(parts=st.dictionaries(st.text(max_size=3), st.tuples(FINITE, FINITE), min_size=1, max_size=4))
def test_the_sum_is_weighted_and_each_part_is_a_metric(parts):
    reward = weighted({name: (gives(value), weight) for name, (value, weight) in parts.items()})
    score = as_score(anyio.run(reward, trajectory_of(), None))
    assert score.value == pytest.approx(sum(value * weight for value, weight in parts.values()), rel=1e-6, abs=1e-3)
    assert score.metrics == {name: value for name, (value, _) in parts.items()}
    assert score.turns is None
    assert score.tokens is None


async def test_turns_tokens_and_metrics_of_the_parts_are_combined():
    full = Score(1.0, (1.0, 2.0), {0: (1.0, 0.0), 1: (3.0,)}, {"passed": 4.0})
    other = Score(2.0, (10.0, 20.0), {0: (5.0, 5.0)})
    reward = weighted({"full": (gives(full), 2.0), "other": (gives(other), 0.5), "plain": (gives(3.0), 1.0)})
    assert await reward(trajectory_of(), None) == Score(
        6.0,
        (7.0, 14.0),
        {0: (4.5, 2.5), 1: (6.0,)},
        {"full": 1.0, "full/passed": 4.0, "other": 2.0, "plain": 3.0},
    )
    mixed = weighted({"full": (gives(full), 1.0), "short": (gives(Score(0.0, (1.0,))), 1.0)})
    with pytest.raises(ValueError, match=r"turns of reward 'short' must be 2 numbers .* found 1"):
        await mixed(trajectory_of(), None)


async def test_parts_run_one_after_another_in_the_same_env():
    seen: list[tuple[str, object]] = []

    def notes(name: str) -> Reward[object]:
        async def reward(trajectory: Trajectory, env: object, /) -> float:
            seen.append((name, env))
            return 0.0

        return reward

    await weighted({"b": (notes("b"), 1.0), "a": (notes("a"), 1.0)})(trajectory_of(), "env")
    assert seen == [("b", "env"), ("a", "env")]


async def test_a_part_that_fails_fails_the_whole():
    with pytest.raises(ValueError, match=r"score\.value must be finite"):
        await weighted({"a": (gives(1.0), 1.0), "b": (gives(math.nan), 0.0)})(trajectory_of(), None)


def test_weights_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="at least one"):
        weighted({})
    with pytest.raises(ConfigError, match="weight of reward 'a' must be finite"):
        weighted({"a": (gives(1.0), math.nan)})


FINISHED = Turn(
    0, Action("raw", content="calls finish"), (Observation("42 ", done=True, metadata={"answer": " 42\n"}),)
)
SPOKEN = Turn(1, Action("raw", content="43"))


async def test_exact_match_compares_the_final_answer():
    assert await exact_match()(trajectory_of(FINISHED, answer=42), None) == 1.0
    assert await exact_match()(trajectory_of(FINISHED, answer="43"), None) == 0.0
    assert await exact_match("gold")(trajectory_of(FINISHED, SPOKEN, gold="43"), None) == 1.0
    with pytest.raises(ValueError, match="the data of task 't' has no 'answer'"):
        await exact_match()(trajectory_of(FINISHED), None)


def test_a_trajectory_without_turns_has_an_empty_answer():
    assert answer_of(trajectory_of()) == ""
    assert answer_of(trajectory_of(FINISHED)) == " 42\n"


def test_the_answer_is_that_of_the_conversation_as_it_ended():
    kept, dropped = Turn(0, Action("kept", "kept")), Turn(1, Action("dropped", "dropped"), follows=-1)
    trajectory = Trajectory(RolloutKey("t", 0), (), (), (kept, dropped), ExitReason.FINISHED, task=Task("t"), tip=0)
    assert answer_of(trajectory) == "kept"
