"""Each estimator against loops written from its formula, over batches whose sessions and turns are known."""

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import agentkit_verl.credit.registered as registered
import numpy as np
import pytest
import torch
from agentkit_verl.credit.context import batch_rows
from agentkit_verl.rows import RowInfo
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from agentkit.errors import ConfigError

Estimator = Callable[..., tuple[torch.Tensor, torch.Tensor]]
gammas = st.sampled_from([0.0, 0.5, 0.95, 1.0])
NAMES = sorted(registered.ESTIMATORS)


def norm(value: float, others: Sequence[float], *, by_std: bool) -> float:
    """(value - mean) / (sample std + 1e-6), and 0 where there is nothing to compare."""
    if len(others) == 1:
        return 0.0
    spread = float(np.std(others, ddof=1)) + 1e-6 if by_std else 1.0
    return (value - float(np.mean(others))) / spread


def outcomes(batch: Any, *, by_std: bool) -> dict[str, float]:
    return {
        session: norm(
            score,
            [batch.score[other] for other in batch.score if batch.group[other] == batch.group[session]],
            by_std=by_std,
        )
        for session, score in batch.score.items()
    }


def returns(batch: Any, gamma: float) -> dict[tuple[str, str, int], float]:
    return {
        (session, agent, k): sum(
            gamma ** (j - k) * reward
            for (other, who, j), reward in batch.turn_reward.items()
            if (other, who) == (session, agent) and j >= k
        )
        for session, agent, k in batch.turn_reward
    }


def expected(batch: Any, of_token: Callable[[str, tuple[str, str, int] | None], float]) -> np.ndarray:
    """The tensor whose trained tokens have the value of their session and turn."""
    values = np.zeros((len(batch.rows), batch.width))
    for number, row in enumerate(batch.rows):
        for t, trained in enumerate(row.mask):
            if trained and row.info is not None:
                span = next(span for span in row.info.actions if span.start <= t < span.stop)
                values[number, t] = of_token(row.session, (row.session, row.info.agent, span.turn))
    return values


def run(name: str, batch: Any, *, by_std: bool = True, **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    rewards, mask, index = batch.tensors()
    config = OmegaConf.create({"norm_adv_by_std_in_grpo": by_std, "agentkit": settings})
    before = rewards.clone()
    with batch_rows(*batch.rows_args()):
        advantages, values = get_adv_estimator_fn(name)(
            token_level_rewards=rewards, response_mask=mask, config=config, index=index
        )
    assert torch.equal(rewards, before)
    assert advantages.shape == values.shape == mask.shape
    assert not advantages[mask == 0].any()
    assert torch.isfinite(advantages).all()
    return advantages.numpy(), values.numpy()


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-8)


@given(data=st.data(), by_std=st.booleans())
def test_grpo_counts_each_session_once(batches: Any, data: st.DataObject, by_std: bool) -> None:
    batch = data.draw(batches())
    advantages, values = run("agentkit_grpo", batch, by_std=by_std)
    of_session = outcomes(batch, by_std=by_std)
    same(advantages, expected(batch, lambda session, _: of_session[session]))
    same(values, expected(batch, lambda session, _: batch.score[session]))


@given(
    data=st.data(), by_std=st.booleans(), gamma=gammas, baseline=st.sampled_from(["turn", "group"]),
    outcome_weight=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_turn_grpo(
    batches: Any, data: st.DataObject, by_std: bool, gamma: float, baseline: str, outcome_weight: float
) -> None:
    batch = data.draw(batches())
    advantages, values = run(
        "agentkit_turn_grpo", batch, by_std=by_std, gamma_turn=gamma, turn_baseline=baseline,
        outcome_weight=outcome_weight,
    )  # fmt: skip
    of_turn, of_session = returns(batch, gamma), outcomes(batch, by_std=by_std)

    def advantage(session: str, turn: Any) -> float:
        others = [
            value for (other, agent, k), value in of_turn.items()
            if batch.group[other] == batch.group[session] and (baseline == "group" or (agent, k) == turn[1:])
        ]  # fmt: skip
        return norm(of_turn[turn], others, by_std=by_std) + outcome_weight * of_session[session]

    same(advantages, expected(batch, advantage))
    same(values, expected(batch, lambda _, turn: of_turn[turn]))


@given(data=st.data(), by_std=st.booleans(), gamma=gammas, step_weight=st.sampled_from([0.0, 0.5, 1.0]))
def test_gigpo(batches: Any, data: st.DataObject, by_std: bool, gamma: float, step_weight: float) -> None:
    batch = data.draw(batches())
    if not any(batch.anchor.values()):
        with pytest.raises(ConfigError, match="no action of this batch has an anchor"):
            run("agentkit_gigpo", batch)
        return
    advantages, values = run("agentkit_gigpo", batch, by_std=by_std, gamma_turn=gamma, step_weight=step_weight)
    of_turn, of_session = returns(batch, gamma), outcomes(batch, by_std=by_std)

    def advantage(session: str, turn: Any) -> float:
        others = [
            value for other, value in of_turn.items()
            if batch.group[other[0]] == batch.group[session] and batch.anchor[other] == batch.anchor[turn] != ""
        ] or [of_turn[turn]]  # fmt: skip
        return of_session[session] + step_weight * norm(of_turn[turn], others, by_std=by_std)

    same(advantages, expected(batch, advantage))
    same(values, expected(batch, lambda _, turn: of_turn[turn]))


@given(data=st.data(), by_std=st.booleans(), gamma=gammas)
def test_discounted(batches: Any, data: st.DataObject, by_std: bool, gamma: float) -> None:
    batch = data.draw(batches())
    advantages, values = run("agentkit_discounted", batch, by_std=by_std, gamma_turn=gamma)
    of_session = outcomes(batch, by_std=by_std)

    def share(turn: Any) -> float:
        session, agent, k = turn
        return gamma ** (max(j for other, who, j in batch.turn_reward if (other, who) == (session, agent)) - k)

    same(advantages, expected(batch, lambda session, turn: share(turn) * of_session[session]))
    same(values, expected(batch, lambda session, turn: share(turn) * batch.score[session]))


def runs_of(mask: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for t, one in enumerate(mask):
        if one and runs and runs[-1][1] == t:
            runs[-1] = (runs[-1][0], t + 1)
        elif one:
            runs.append((t, t + 1))
    return runs


@given(
    masks=st.lists(st.lists(st.integers(0, 1), min_size=7, max_size=7), min_size=1, max_size=8),
    data=st.data(),
    gamma=gammas,
    is_set=st.booleans(),
)
def test_without_rows_each_row_is_a_session_and_runs_are_turns(
    masks: list[list[int]], data: st.DataObject, gamma: float, is_set: bool
) -> None:
    """Under verl's own trainers, or where no row came from agentkit."""
    size = len(masks)
    groups = data.draw(st.lists(st.sampled_from("xyz"), min_size=size, max_size=size))
    rewards = data.draw(st.lists(st.lists(st.integers(-8, 8), min_size=7, max_size=7), min_size=size, max_size=size))
    of_turn: dict[tuple[int, int], float] = {}
    for row, mask in enumerate(masks):
        runs = runs_of(mask)
        bounds = [0, *(start for start, _ in runs[1:]), 7]
        parts = [sum(rewards[row][a:b]) for a, b in itertools.pairwise(bounds)][: len(runs)]
        for k in range(len(runs)):
            of_turn[row, k] = sum(gamma ** (j - k) * parts[j] for j in range(k, len(runs)))
    wanted = {name: np.zeros((size, 7)) for name in ("agentkit_grpo", "agentkit_turn_grpo", "agentkit_discounted")}
    for row, mask in enumerate(masks):
        siblings = [sum(rewards[other]) for other in range(size) if groups[other] == groups[row]]
        outcome = norm(sum(rewards[row]), siblings, by_std=True)
        runs = runs_of(mask)
        for k, (start, stop) in enumerate(runs):
            others = [v for (other, j), v in of_turn.items() if j == k and groups[other] == groups[row]]
            wanted["agentkit_grpo"][row, start:stop] = outcome
            wanted["agentkit_turn_grpo"][row, start:stop] = norm(of_turn[row, k], others, by_std=True) + outcome
            wanted["agentkit_discounted"][row, start:stop] = gamma ** (len(runs) - 1 - k) * outcome
    args = {
        "token_level_rewards": torch.tensor(rewards, dtype=torch.float64), "response_mask": torch.tensor(masks),
        "config": {"agentkit": {"gamma_turn": gamma}}, "index": np.array(groups, dtype=object),
    }  # fmt: skip
    for name, values in wanted.items():
        if is_set:
            with batch_rows([f"{group}_{n}_0" for n, group in enumerate(groups)], [None] * size):
                found = registered.ESTIMATORS[name](**args)[0]
        else:
            found = registered.ESTIMATORS[name](**args)[0]
        same(found.numpy(), values)
    with pytest.raises(ConfigError, match="trainer_mode=agentkit_sync"):
        registered.ESTIMATORS["agentkit_gigpo"](**args)


@given(data=st.data())
def test_grpo_is_that_of_verl_where_verl_has_one(batches: Any, data: st.DataObject) -> None:
    """verl's GRPO takes the score of a session's last row: the same, where rows repeat the score and none is alone."""
    batch = data.draw(batches())
    sizes = defaultdict(int)
    for group in batch.group.values():
        sizes[group] += 1
    rows = [
        evolve(row, rewards=[0.0] * (len(row.rewards) - 1) + [batch.score[row.session]], mask=[1] * len(row.mask))
        for row in batch.rows
        if row.info is not None and sizes[row.group] > 1
    ]
    if not rows:
        return
    batch = evolve(batch, rows=rows)
    rewards, mask, index = batch.tensors(torch.float32)

    def computed(name: str) -> torch.Tensor:
        tensors = {"token_level_rewards": rewards.clone(), "response_mask": mask}
        proto = DataProto.from_dict(tensors=tensors, non_tensors={"uid": index})
        keys, infos = batch.rows_args()
        with batch_rows(keys, infos):
            out = compute_advantage_for_multi_trajectories(
                proto, batch_keys=keys, adv_estimator=name, config=OmegaConf.create({})
            )
        return out.batch["advantages"]

    torch.testing.assert_close(computed("agentkit_grpo"), computed("grpo"), rtol=1e-3, atol=1e-3)


def info(session: int, **changes: Any) -> RowInfo:
    return RowInfo(task_id="t", session=session, **changes)


def test_more_chains_do_not_make_more_of_a_session() -> None:
    keys = ["u_0_0", "u_1_0", "u_1_1", "u_1_2", "u_2_0"]
    infos = [info(session, score=score) for session, score in [(0, 1.0), (1, 4.0), (1, 4.0), (1, 4.0), (2, 1.0)]]
    rewards = torch.tensor([[0.0, 1.0], [0.0, 4.0], [0.0, 4.0], [0.0, 4.0], [0.0, 1.0]])
    args = {"token_level_rewards": rewards, "response_mask": torch.ones(5, 2), "index": ["u"] * 5}
    with batch_rows(keys, infos):
        advantages, _ = registered.ESTIMATORS["agentkit_grpo"](**args, config={"norm_adv_by_std_in_grpo": False})
    assert advantages[:, 0].tolist() == [-1.0, 2.0, 2.0, 2.0, -1.0]


@pytest.mark.parametrize("name", ["agentkit_grpo", "agentkit_turn_grpo", "agentkit_discounted"])
def test_a_lone_session_learns_nothing_from_its_own_reward(name: str) -> None:
    args = {"token_level_rewards": torch.tensor([[0.0, 7.0]]), "response_mask": torch.ones(1, 2), "index": ["u"]}
    with batch_rows(["u_0_0"], [info(0, score=7.0)]):
        advantages, _ = registered.ESTIMATORS[name](**args, config=None)
    assert advantages.tolist() == [[0.0, 0.0]]


def test_masked_sessions_move_the_baseline() -> None:
    rewards, mask = torch.tensor([[1.0], [0.0], [5.0]]), torch.tensor([[1], [1], [0]])
    with batch_rows(["u_0_0", "u_1_0", "u_2_0"], [info(n) for n in range(3)]):
        advantages, _ = registered.ESTIMATORS["agentkit_grpo"](
            rewards, mask, index=["u"] * 3, config={"norm_adv_by_std_in_grpo": False}
        )
    assert advantages[:, 0].tolist() == [-1.0, -2.0, 0.0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("config", "index", "said"),
    [
        ({"agentkit": {"gama_turn": 1.0}}, ["u"], "unknown key algorithm.agentkit.gama_turn: expected one of gamma"),
        ({"agentkit": {"gamma_turn": 1.5}}, ["u"], "gamma_turn must be from 0 to 1, found 1.5"),
        ({"agentkit": {"gamma_turn": True}}, ["u"], "gamma_turn must be a number from 0, found True"),
        ({"agentkit": {"outcome_weight": math.nan}}, ["u"], "outcome_weight must be a number"),
        ({"agentkit": {"turn_baseline": "all"}}, ["u"], "turn_baseline must be one of turn, group, found 'all'"),
        ({"agentkit": {"weights": "per-chain"}}, ["u"], "weights must be one of none, session-balanced"),
        ({"agentkit": {"kind_weights": {"thought": 1}}}, ["u"], "unknown kind algorithm.agentkit.kind_weights.thought"),
        ({"agentkit": {"kind_weights": {"text": -1}}}, ["u"], "kind_weights.text must be a number from 0, found -1"),
        ({"agentkit": 3}, ["u"], "algorithm.agentkit must be a section of keys and values, found 3"),
        ({"use_kl_in_reward": True}, ["u"], "set it to False and actor_rollout_ref.actor.use_kl_loss to True"),
        ({}, None, "verl passed no uid"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_named(name: str, config: dict[str, Any], index: Any, said: str) -> None:
    for given_config in (config, OmegaConf.create(config)):
        with pytest.raises(ConfigError, match=said):
            registered.ESTIMATORS[name](torch.zeros(1, 2), torch.ones(1, 2), index=index, config=given_config)


def test_rows_of_another_batch_are_refused() -> None:
    with (
        batch_rows(["u_0_0"], [info(0)]),
        pytest.raises(ConfigError, match="has 2 rows, but 1 rows were set"),
    ):
        registered.ESTIMATORS["agentkit_grpo"](torch.zeros(2, 2), torch.ones(2, 2), index=["u", "u"], config={})
