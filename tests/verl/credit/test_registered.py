"""What verl finds under our names, and what of our settings its real configuration lets through."""

import importlib
from typing import Any

import agentkit_verl.credit.registered as registered
import numpy as np
import pytest
import torch
from agentkit_verl.credit.context import batch_rows
from agentkit_verl.credit.settings import CreditSettings
from agentkit_verl.rows import ActionSpan, RowInfo
from hydra import compose, initialize_config_module
from hydra.errors import InstantiationException
from tensordict import TensorDict
from verl import DataProto
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss


def composed(*overrides: str) -> Any:
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


def test_importing_twice_changes_nothing() -> None:
    again = importlib.reload(registered)
    for name, estimator in again.ESTIMATORS.items():
        assert get_adv_estimator_fn(name) is estimator
    for name, loss in again.POLICY_LOSSES.items():
        assert get_policy_loss_fn(name) is loss
    assert set(again.ESTIMATORS) == {"agentkit_grpo", "agentkit_turn_grpo", "agentkit_gigpo", "agentkit_discounted"}
    assert set(again.POLICY_LOSSES) == {"agentkit_action", "agentkit_action_sum"}


def test_verls_configuration_carries_the_settings() -> None:
    config = composed(
        "algorithm.adv_estimator=agentkit_gigpo",
        "algorithm.norm_adv_by_std_in_grpo=False",
        "+algorithm.agentkit.gamma_turn=0.9",
        "+algorithm.agentkit.turn_baseline=group",
        "+algorithm.agentkit.outcome_weight=0",
        "+algorithm.agentkit.step_weight=2",
        "+algorithm.agentkit.weights=session-balanced",
        "+algorithm.agentkit.kind_weights={reasoning: 0.5, call: 0}",
    )
    stock = composed()
    settings = CreditSettings.of(config.algorithm)
    assert settings == CreditSettings(
        gamma_turn=0.9, turn_baseline="group", outcome_weight=0.0, step_weight=2.0, weights="session-balanced",
        kind_weights={"reasoning": 0.5, "call": 0.0}, by_std=False,
    )  # fmt: skip
    assert settings.applies_weights
    assert CreditSettings.of(stock.algorithm) == CreditSettings() == CreditSettings.of(None)
    assert not CreditSettings().applies_weights
    # The dataclass takes no key but its own: what verl passes to estimators must stay the OmegaConf section.
    assert CreditSettings.of(omega_conf_to_dataclass(stock.algorithm)) == CreditSettings()
    with pytest.raises(InstantiationException, match="agentkit"):
        omega_conf_to_dataclass(config.algorithm)


def test_weights_of_none_may_be_spelled_null() -> None:
    assert CreditSettings.of({"agentkit": {"weights": None, "kind_weights": None}}) == CreditSettings()
    assert not CreditSettings.of({"agentkit": {"kind_weights": {"text": 1}}}).applies_weights


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("agentkit_grpo", [[1.0, 0.0, 1.0], [-1.0, 0.0, -1.0]]),
        (
            "agentkit_turn_grpo",
            [[1.5, 0.0, 2.0], [-1.5, 0.0, -2.0]],
        ),  # returns of 1, 2 and of 0, 0
        ("agentkit_gigpo", [[1.5, 0.0, 1.0], [-1.5, 0.0, -1.0]]),  # only the first turns were in an equal state
        ("agentkit_discounted", [[0.5, 0.0, 1.0], [-0.5, 0.0, -1.0]]),
    ],
)
def test_verl_calls_each_estimator_by_its_name(name: str, wanted: list[list[float]]) -> None:
    config = composed(f"algorithm.adv_estimator={name}", "algorithm.norm_adv_by_std_in_grpo=False",
                      "+algorithm.agentkit.gamma_turn=0.5")  # fmt: skip
    keys = ["u_0_0", "u_1_0"]
    infos = [
        RowInfo(task_id="t", session=session, score=score,
                actions=(ActionSpan(0, 0, 1, anchor="start"), ActionSpan(1, 2, 3, anchor=f"later{session}")))
        for session, score in enumerate([2.0, 0.0])
    ]  # fmt: skip
    tensors = {
        "token_level_rewards": torch.tensor([[0.0, 0.0, 2.0], [0.0, 0.0, 0.0]]),
        "response_mask": torch.tensor([[1, 0, 1], [1, 0, 1]]),
    }
    data = DataProto.from_dict(tensors=tensors, non_tensors={"uid": np.array(["u", "u"], dtype=object)})
    with batch_rows(keys, infos):
        data = compute_advantage_for_multi_trajectories(
            data, batch_keys=keys, adv_estimator=config.algorithm.adv_estimator, config=config.algorithm
        )
    assert data.batch["advantages"].tolist() == wanted


@pytest.mark.parametrize(("name", "ratio"), [("agentkit_action", 1.05), ("agentkit_action_sum", 1.05**2)])
def test_verls_worker_calls_each_loss_by_its_name(name: str, ratio: float) -> None:
    """Through the function that verl's FSDP and Megatron workers train with, on nested tensors."""
    config = omega_conf_to_dataclass(
        composed(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={name}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        ).actor_rollout_ref.actor
    )
    nested = {
        "prompts": [[1, 1], [1]], "responses": [[5, 6, 7], [8]], "response_mask": [[1, 1, 0], [1]],
        "old_log_probs": [[-1.0, -1.0, 0.0], [-1.0]], "advantages": [[1.0, 1.0, 0.0], [-1.0]],
    }  # fmt: skip
    data = TensorDict(
        {
            key: torch.nested.as_nested_tensor([torch.tensor(row) for row in value], layout=torch.jagged)
            for key, value in nested.items()
        },
        batch_size=2,
    )
    tensordict_utils.assign_non_tensor(data, dp_size=1, batch_num_tokens=3, global_batch_size=2)
    step = float(np.log(1.05))
    # of each row: log-probabilities of all its tokens but the first, and one more that is not read
    log_probs = torch.tensor([0.0, -1.0 + step, -1.0 + step, 0.0, 0.0, -1.0, 0.0], requires_grad=True)
    loss, metrics = ppo_loss(config, {"log_probs": log_probs}, data)
    assert loss.item() == pytest.approx((-2 * ratio + 1.0) / 3, rel=1e-5)
    loss.backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == pytest.approx([0, -ratio / 3, -ratio / 3, 0, 0, 1 / 3, 0], rel=1e-5)
    assert metrics["actor/pg_clipfrac"].aggregate() == 0.0
