"""What verl finds under our names, and what of our settings its real configuration lets through."""

import importlib

import agentkit_verl.credit.registered as registered
import pytest
from agentkit_verl.credit.settings import CreditSettings
from hydra import compose, initialize_config_module
from hydra.errors import InstantiationException
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
from verl.utils.config import omega_conf_to_dataclass


def test_importing_twice_changes_nothing() -> None:
    again = importlib.reload(registered)
    for name, estimator in again.ESTIMATORS.items():
        assert get_adv_estimator_fn(name) is estimator
    for name, loss in again.POLICY_LOSSES.items():
        assert get_policy_loss_fn(name) is loss
    assert set(again.ESTIMATORS) == {"agentkit_grpo", "agentkit_turn_grpo", "agentkit_gigpo", "agentkit_discounted"}
    assert set(again.POLICY_LOSSES) == {"agentkit_action", "agentkit_action_sum"}


def test_verls_configuration_carries_the_settings() -> None:
    with initialize_config_module(config_module="verl.trainer.config", version_base=None):
        config = compose(
            "ppo_trainer",
            overrides=[
                "algorithm.adv_estimator=agentkit_gigpo",
                "algorithm.norm_adv_by_std_in_grpo=False",
                "+algorithm.agentkit.gamma_turn=0.9",
                "+algorithm.agentkit.turn_baseline=group",
                "+algorithm.agentkit.outcome_weight=0",
                "+algorithm.agentkit.step_weight=2",
                "+algorithm.agentkit.weights=session-balanced",
                "+algorithm.agentkit.kind_weights={reasoning: 0.5, call: 0}",
                "actor_rollout_ref.actor.policy_loss.loss_mode=agentkit_action",
            ],
        )
        stock = compose("ppo_trainer")
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
