"""The losses of actions against loops, against verl's own where they agree, and their gradients against differences."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import agentkit_verl.credit.registered as registered
import pytest
import torch
from agentkit_verl.credit.losses import action_log_ratios
from hypothesis import example, given
from hypothesis import strategies as st
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from agentkit.errors import ConfigError

BOTH = sorted(registered.POLICY_LOSSES)
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
both = pytest.mark.parametrize("name", BOTH)


def actor(**changes: Any) -> ActorConfig:
    return ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **changes)


def runs_of(mask: Sequence[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for t, one in enumerate(mask):
        if one and runs and runs[-1][-1] == t - 1:
            runs[-1].append(t)
        elif one:
            runs.append([t])
    return runs


class Drawn:
    """One batch in double precision."""

    def __init__(self, masks: list[list[int]], old: list[list[float]], new: list[list[float]], adv: list[list[float]]):
        self.mask = torch.tensor(masks)
        self.old = torch.tensor(old, dtype=torch.float64)
        self.new = torch.tensor(new, dtype=torch.float64)
        self.adv = torch.tensor(adv, dtype=torch.float64)

    def loss(
        self, name: str, mode: str = "token-sum", *, adv: torch.Tensor | None = None, **changes: Any
    ) -> tuple[float, torch.Tensor, dict[str, Any]]:
        """The loss, its gradient by log-probability, and its metrics."""
        weights = changes.pop("weights", None)
        new = self.new.clone().requires_grad_()
        value, metrics = get_policy_loss_fn(name)(
            old_log_prob=self.old, log_prob=new, advantages=self.adv if adv is None else adv,
            response_mask=self.mask.bool(), loss_agg_mode=mode, config=actor(**changes), rollout_is_weights=weights,
        )  # fmt: skip
        value.backward()
        assert new.grad is not None
        return value.item(), new.grad, metrics


@st.composite
def drawn(draw: st.DrawFn, *, nonnegative: bool = False) -> Drawn:
    rows, width = draw(st.integers(1, 3)), draw(st.integers(1, 7))

    def grid(of: st.SearchStrategy[Any]) -> list[list[Any]]:
        return draw(st.lists(st.lists(of, min_size=width, max_size=width), min_size=rows, max_size=rows))

    # Steps of 1/64 and odd 1/128ths keep ratios away from the bounds of the clip, where the loss has no gradient.
    steps = st.integers(-40, 40).map(lambda n: n / 64 + 1 / 128)
    old = grid(st.integers(-320, -1).map(lambda n: n / 64))
    new = [[one + more for one, more in zip(a, b, strict=True)] for a, b in zip(old, grid(steps), strict=True)]
    return Drawn(grid(st.sampled_from([1, 1, 1, 0])), old, new, grid(st.integers(0 if nonnegative else -8, 8)))


def oracle(batch: Drawn, *, is_mean: bool, low: float, high: float, dual: float) -> tuple[list[list[float]], ...]:
    """The loss of each token, its derivative by the token's log-probability, and whether the clip took it."""
    shape = batch.mask.shape
    losses, slopes, clips = ([[0.0] * shape[1] for _ in range(shape[0])] for _ in range(3))
    for row in range(shape[0]):
        for run in runs_of(batch.mask[row].tolist()):
            log = sum(float(batch.new[row, t] - batch.old[row, t]) for t in run)
            ratio = math.exp(log / len(run) if is_mean else log)
            for t in run:
                advantage = float(batch.adv[row, t])
                bounded = min(max(ratio, 1 - low), 1 + high)
                gain = min(ratio * advantage, bounded * advantage)  # PPO: Schulman et al. 2017, equation 7
                is_open = gain == ratio * advantage
                clips[row][t] = float(bounded * advantage < ratio * advantage)
                if advantage < 0 and gain < dual * advantage:  # dual clip: Ye et al. 2019, equation 5
                    gain, is_open = dual * advantage, False
                losses[row][t] = -gain
                slopes[row][t] = -ratio * advantage if is_open else 0.0
    return losses, slopes, clips


def divisors(batch: Drawn, mode: str) -> list[float]:
    """What the loss of each row's tokens is divided by."""
    counts = [sum(row) for row in batch.mask.tolist()]
    trained, width = sum(map(bool, counts)), batch.mask.shape[1]
    of_mode = {
        "token-mean": [sum(counts)] * len(counts),
        "token-sum": [1] * len(counts),
        "seq-mean-token-sum": [trained] * len(counts),
        "seq-mean-token-mean": [trained * count for count in counts],
        "seq-mean-token-sum-norm": [trained * width] * len(counts),
    }
    return [float(max(one, 1)) for one in of_mode[mode]]


@both
@given(batch=drawn(), mode=st.sampled_from(MODES), low=st.sampled_from([0.1, 0.2]), high=st.sampled_from([0.2, 0.3]),
       dual=st.sampled_from([1.1, 3.0]))  # fmt: skip
def test_loss_and_gradient_are_those_of_the_formula(
    name: str, batch: Drawn, mode: str, low: float, high: float, dual: float
) -> None:
    losses, slopes, clips = oracle(batch, is_mean=name == "agentkit_action", low=low, high=high, dual=dual)
    value, gradient, metrics = batch.loss(name, mode, clip_ratio_low=low, clip_ratio_high=high, clip_ratio_c=dual)
    by = divisors(batch, mode)
    assert value == pytest.approx(sum(sum(row) / by[n] for n, row in enumerate(losses)), rel=1e-6, abs=1e-9)
    wanted = torch.tensor([[slope / by[n] for slope in row] for n, row in enumerate(slopes)], dtype=torch.float64)
    torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-9)
    trained = int(batch.mask.sum())
    taken = sum(map(sum, clips)) / max(trained, 1)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(taken, abs=1e-5)
    change = ((batch.old - batch.new) * batch.mask).sum().item() / max(trained, 1)
    assert metrics["actor/ppo_kl"] == pytest.approx(change, abs=1e-5)


@both
@given(batch=drawn())
def test_gradient_is_that_of_the_actions_objective(name: str, batch: Drawn) -> None:
    """The stop-gradient is a way of writing: by differences, it descends on the sum over actions of -A * ratio.

    With the mean, each action counts as often as it has tokens, as in the sum over tokens that verl aggregates.
    """
    is_mean = name == "agentkit_action"
    actions = [(row, run) for row in range(batch.mask.shape[0]) for run in runs_of(batch.mask[row].tolist())]

    def objective(new: torch.Tensor) -> float:
        total = 0.0
        for row, run in actions:
            log = sum(float(new[row, t] - batch.old[row, t]) for t in run)
            ratio = math.exp(log / len(run) if is_mean else log)
            total -= float(batch.adv[row, run[0]]) * ratio * (len(run) if is_mean else 1)
        return total

    adv = batch.adv.clone()
    for row, run in actions:
        adv[row, run] = batch.adv[row, run[0]]
    _, gradient, _ = batch.loss(name, adv=adv, clip_ratio_low=0.999999, clip_ratio_high=1e9, clip_ratio_c=1e12)
    step = 1e-5
    for row, run in actions:
        for t in run:
            up, down = batch.new.clone(), batch.new.clone()
            up[row, t] += step
            down[row, t] -= step
            slope = (objective(up) - objective(down)) / (2 * step)
            assert gradient[row, t].item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", [*BOTH, "vanilla"])
@given(batch=drawn(), mode=st.sampled_from(MODES), data=st.data())
def test_weighting_an_advantage_weights_its_gradient(name: str, batch: Drawn, mode: str, data: st.DataObject) -> None:
    """What `token_weights` rests on, dual clip included, for verl's own loss as for ours."""
    shape = batch.mask.shape
    numbers = data.draw(st.lists(st.integers(0, 8), min_size=batch.mask.numel(), max_size=batch.mask.numel()))
    weights = torch.tensor(numbers, dtype=torch.float64).reshape(shape) / 4
    _, plain, _ = batch.loss(name, mode, clip_ratio_c=1.2)
    _, weighted, _ = batch.loss(name, mode, adv=batch.adv * weights, clip_ratio_c=1.2)
    torch.testing.assert_close(weighted, plain * weights, rtol=1e-9, atol=1e-12, equal_nan=not batch.mask.any())
    once, _, _ = batch.loss(name, mode, clip_ratio_c=1.2)
    thrice, _, _ = batch.loss(name, mode, adv=3 * batch.adv, clip_ratio_c=1.2)
    assert thrice == pytest.approx(3 * once, rel=1e-9, abs=1e-12, nan_ok=not batch.mask.any())


@both
@given(batch=drawn(), mode=st.sampled_from(MODES))
def test_actions_of_one_token_are_verls_ppo(name: str, batch: Drawn, mode: str) -> None:
    batch.mask[:, 1::2] = 0
    if not batch.mask.any():
        return
    ours, verls = batch.loss(name, mode), batch.loss("vanilla", mode)
    assert ours[0] == pytest.approx(verls[0])
    torch.testing.assert_close(ours[1], verls[1])
    assert ours[2] == pytest.approx(verls[2], abs=1e-6)


@given(batch=drawn(nonnegative=True), mode=st.sampled_from(MODES), data=st.data())
def test_one_action_a_row_is_verls_gspo(batch: Drawn, mode: str, data: st.DataObject) -> None:
    width = batch.mask.shape[1]
    for row in range(batch.mask.shape[0]):
        start = data.draw(st.integers(0, width - 1))
        batch.mask[row] = torch.tensor([int(start <= t) for t in range(width)])
    ours, verls = batch.loss("agentkit_action", mode), batch.loss("gspo", mode)
    assert ours[0] == pytest.approx(verls[0])
    torch.testing.assert_close(ours[1], verls[1])
    assert ours[2] == pytest.approx(verls[2], abs=1e-6)


@given(masks=st.lists(st.lists(st.integers(0, 1), min_size=6, max_size=6), min_size=1, max_size=4), data=st.data())
@example(masks=[[1, 1, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], data=None)
def test_runs_do_not_mix(masks: list[list[int]], data: st.DataObject | None) -> None:
    numbers = [
        data.draw(st.lists(st.integers(-9, 9), min_size=6, max_size=6)) if data else list(range(6)) for _ in masks
    ]
    values = torch.tensor(numbers, dtype=torch.float64)
    for is_mean in (False, True):
        wanted = torch.zeros_like(values)
        for row, mask in enumerate(masks):
            for run in runs_of(mask):
                total = sum(numbers[row][t] for t in run)
                wanted[row, run] = total / len(run) if is_mean else float(total)
        found = action_log_ratios(values, torch.tensor(masks).bool(), is_mean=is_mean)
        torch.testing.assert_close(found, wanted)


@both
@pytest.mark.parametrize("mode", MODES)
def test_nothing_trained_is_zero(name: str, mode: str) -> None:
    batch = Drawn([[0, 0]], [[-1.0, -2.0]], [[math.nan, -math.inf]], [[1.0, -1.0]])
    value, gradient, metrics = batch.loss(name, mode)
    assert value == 0.0
    assert gradient.tolist() == [[0.0, 0.0]]
    assert set(metrics) == {"actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower"}
    assert not any(metrics.values())


@both
@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_trained_may_hold_anything(name: str, mode: str) -> None:
    batch = Drawn([[1, 0, 1]], [[-1.0, 0.0, -1.0]], [[-1.0, math.nan, -1.0]], [[2.0, 5.0, 2.0]])
    value, gradient, _ = batch.loss(name, mode)
    by = divisors(batch, mode)[0]
    assert value == pytest.approx(-4.0 / by)
    assert gradient[0].tolist() == pytest.approx([-2.0 / by, 0.0, -2.0 / by])


@both
def test_far_ratios_stay_finite(name: str) -> None:
    batch = Drawn([[1] * 4], [[-900.0] * 4], [[-1.0] * 4], [[-1.0] * 4])
    value, gradient, metrics = batch.loss(name)
    assert value == 4 * 3.0  # the dual clip, at clip_ratio_c=3
    assert gradient.tolist() == [[0.0] * 4]
    assert metrics["actor/pg_clipfrac_lower"] == pytest.approx(1.0)


@both
def test_weights_of_rollout_correction_and_global_sizes_are_used(name: str) -> None:
    batch = Drawn([[1, 1, 0]], [[-1.0] * 3], [[-1.0] * 3], [[1.0] * 3])
    value, gradient, _ = batch.loss(name, weights=torch.tensor([[0.5, 2.0, 9.0]]))
    assert value == -2.5
    assert gradient.tolist() == [[-0.5, -2.0, 0.0]]
    sized = batch.loss(
        name, "token-mean", global_batch_info={"dp_size": 2, "batch_num_tokens": 8, "global_batch_size": 4}
    )
    assert sized[0] == -0.5


@both
@pytest.mark.parametrize(("config", "said"), [(None, "needs verl's actor config"), (1.0, "clip_ratio_c must be")])
def test_config_that_cannot_be_used(name: str, config: float | None, said: str) -> None:
    loss: Callable[..., Any] = registered.POLICY_LOSSES[name]
    one = torch.ones(1, 1)
    with pytest.raises(ConfigError, match=said):
        loss(one, one, one, one, config=None if config is None else actor(clip_ratio_c=config))
