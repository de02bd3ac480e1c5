"""A plan decides by its seed, the rollout and the event, and by nothing else."""

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.protocols import RolloutKey
from agentkit.testing import FaultPlan, strategies
from agentkit.testing.plan import faults

KEY = RolloutKey("t", 0)


@given(strategies.fault_plans(1.0, deaths=3))
def test_a_plan_is_what_its_repr_says(plan: FaultPlan) -> None:
    assert eval(repr(plan), {"FaultPlan": FaultPlan}) == plan


def test_a_repr_says_only_what_was_given() -> None:
    assert repr(FaultPlan(seed=7, stall=0.02)) == "FaultPlan(seed=7, stall=0.02)"


@pytest.mark.parametrize("fault", faults())
def test_a_fault_strikes_at_its_rate(fault: str) -> None:
    for rate in (0.0, 0.1, 0.5, 1.0):
        plan = FaultPlan(seed=3, **{fault: rate})
        struck = sum(plan.strikes(fault, RolloutKey(f"t{n}", n % 4), n) for n in range(4000))
        assert struck == pytest.approx(4000 * rate, abs=4 * (4000 * rate * (1 - rate)) ** 0.5)


def test_each_part_of_where_it_happens_matters() -> None:
    plan = FaultPlan(seed=1, stall=0.5)
    places = [
        (plan, "stall", KEY, 0),
        (FaultPlan(seed=2, stall=0.5), "stall", KEY, 0),
        (plan, "crash", KEY, 0),
        (plan, "stall", RolloutKey("u", 0), 0),
        (plan, "stall", RolloutKey("t", 1), 0),
        (plan, "stall", RolloutKey("t", 0, 1), 0),
        (plan, "stall", KEY, 1),
    ]
    drawn = [one.draw(what, key, event) for one, what, key, event in places]
    assert len(set(drawn)) == len(drawn)
    assert drawn == [one.draw(what, key, event) for one, what, key, event in places]


@given(strategies.texts(), st.integers(), strategies.texts())
def test_a_draw_is_from_0_to_1_for_any_name(task_id: str, seed: int, event: str) -> None:
    assert 0 <= FaultPlan(seed=seed).draw("x", RolloutKey(task_id, 0), event) < 1


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan"), "half", True, None])
def test_what_is_no_rate_is_refused(rate: object) -> None:
    with pytest.raises(ConfigError, match=r"fault_plan\.stall is a rate from 0 to 1"):
        FaultPlan(stall=rate)


def test_everything_is_every_fault() -> None:
    plan = FaultPlan.everything(0.25, seed=4, deaths=2)
    rates = attrs.asdict(plan)
    assert (rates.pop("seed"), rates.pop("deaths"), rates.pop("slow_s")) == (4, 2, 20.0)
    assert set(rates) == set(faults())
    assert set(rates.values()) == {0.25}
