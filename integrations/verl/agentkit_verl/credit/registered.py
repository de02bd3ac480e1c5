"""Importing this puts the estimators and policy losses into verl's registries; importing it again changes nothing."""

# pyright: basic, reportMissingImports=false
# verl is not in the environment that this is type-checked in.

from typing import Any, Final

from verl.trainer.ppo.core_algos import register_adv_est, register_policy_loss

from agentkit_verl.credit.estimators import discounted, gigpo, grpo, turn_grpo
from agentkit_verl.credit.losses import action_loss, action_sum_loss

ESTIMATORS: Final[dict[str, Any]] = {
    "agentkit_grpo": grpo,
    "agentkit_turn_grpo": turn_grpo,
    "agentkit_gigpo": gigpo,
    "agentkit_discounted": discounted,
}
"""By the name for `algorithm.adv_estimator`."""

POLICY_LOSSES: Final[dict[str, Any]] = {"agentkit_action": action_loss, "agentkit_action_sum": action_sum_loss}
"""By the name for `actor_rollout_ref.actor.policy_loss.loss_mode`."""

for _name, _estimator in ESTIMATORS.items():
    register_adv_est(_name)(_estimator)
for _name, _loss in POLICY_LOSSES.items():
    register_policy_loss(_name)(_loss)
