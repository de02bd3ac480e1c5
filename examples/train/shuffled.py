"""The control: GRPO that is told the wrong rewards. A module that verl loads, named in VERL_USE_EXTERNAL_MODULES.

Each group's rewards are dealt out again at random among its own rollouts. Advantages are as large and as many as those
of GRPO, and say nothing: whatever else makes a policy better, this run has it too.
"""

import os
import random

import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, register_adv_est

NAME = "shuffled_grpo"
DEAL = random.Random(int(os.environ.get("SHUFFLE_SEED", "0")))


# --8<-- [start:shuffled]
@register_adv_est(NAME)
def shuffled_grpo(token_level_rewards, response_mask, index, **_):
    """GRPO's advantages over rewards shuffled within each group; `index` names each rollout's group."""
    scores = token_level_rewards.sum(dim=-1)
    dealt = torch.zeros_like(token_level_rewards)  # GRPO sums over tokens: it does not matter where a reward stands
    for group in dict.fromkeys(index):
        rows = [row for row, other in enumerate(index) if other == group]
        dealt[rows, 0] = scores[DEAL.sample(rows, len(rows))]
    return compute_grpo_outcome_advantage(dealt, response_mask, index)


# --8<-- [end:shuffled]
