"""Policy losses whose importance ratio is that of a whole action: a run of trained tokens.

verl's `PolicyLossConfig` takes no fields but its own and is not passed the algorithm's section, so which ratio is meant
is in the name: `agentkit_action` and `agentkit_action_sum`. Clip ranges are the actor's own.
"""

# pyright: basic, reportMissingImports=false
# torch and verl are not in the environment that this is type-checked in.

from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss
from verl.utils.torch_functional import masked_mean

from agentkit.errors import ConfigError

_LOG_RATIO_LIMIT = 20.0
"""As in verl's own PPO loss: exp(20) is far outside every clip range, and finite."""


def action_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """PPO's clipped loss with the geometric mean of an action's token ratios as the ratio of each of its tokens.

    Zheng et al. 2025, arXiv 2507.18071, section 4.3 (GSPO-token), with s_i of section 4.1 over each action in place of
    each response: s_a = exp(mean over the action's tokens of log pi - log pi_old), and at token t
    sg[s_a] * pi_t / sg[pi_t]. Deviations: the unit is the action; tokens are aggregated by `loss_agg_mode`; negative
    advantages have PPO's dual clip (`clip_ratio_c`), which GSPO does not.

    Raises:
        ConfigError: verl passed no actor config.
    """
    return _clipped(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights, is_mean=True
    )


def action_sum_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """As `action_loss`, with the full product of the ratios: s_a = pi(action) / pi_old(action).

    This is importance sampling of actions as they are, unbiased where nothing is clipped. Its spread grows with the
    length of actions: the clip range for it is wider than PPO's, or most long actions are clipped.

    Raises:
        ConfigError: verl passed no actor config.
    """
    return _clipped(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights, is_mean=False
    )


def action_log_ratios(log_ratio: torch.Tensor, mask: torch.Tensor, *, is_mean: bool) -> torch.Tensor:
    """At each token the sum, or mean, of `log_ratio` over the run of ones in `mask` around it, 0 outside.

    All have shape (rows, tokens), and `mask` is boolean. Numbers are finite everywhere.
    """
    before = torch.nn.functional.pad(mask[:, :-1], (1, 0))
    numbers = torch.cumsum(mask & ~before, dim=-1) * mask
    sums = log_ratio.new_zeros(mask.shape[0], mask.shape[1] + 1)
    totals = sums.scatter_add(1, numbers, log_ratio)
    if is_mean:
        totals = totals / sums.scatter_add(1, numbers, mask.to(sums.dtype)).clamp(min=1.0)
    return totals.gather(1, numbers) * mask


def _clipped(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str,
    config: Any,
    rollout_is_weights: torch.Tensor | None,
    *,
    is_mean: bool,
) -> tuple[torch.Tensor, dict[str, Any]]:
    if config is None:
        raise ConfigError("the loss needs verl's actor config for its clip range, found None")
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    dual = config.get("clip_ratio_c", 3.0)
    if dual <= 1.0:
        raise ConfigError(f"actor.clip_ratio_c must be greater than 1, found {dual!r}")
    mask = response_mask.bool()
    if not mask.any():  # verl divides by the number of tokens, and 0/0 would spoil all weights
        nothing = torch.where(mask, log_prob, torch.zeros_like(log_prob)).sum()
        return nothing, {"actor/pg_clipfrac": 0.0, "actor/ppo_kl": 0.0, "actor/pg_clipfrac_lower": 0.0}

    # What is not trained may hold anything, and anything but a number times 0 is none.
    log_prob, old_log_prob = (torch.where(mask, each, torch.zeros_like(each)) for each in (log_prob, old_log_prob))
    log_ratio = (log_prob - old_log_prob).detach()
    of_action = action_log_ratios(log_ratio, mask, is_mean=is_mean).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    # The value of the action's ratio, the gradient of the token's own log-probability.
    ratio = torch.exp(of_action) * torch.exp(log_prob - log_prob.detach())
    unclipped = -advantages * ratio
    clipped = -advantages * torch.clamp(ratio, 1 - low, 1 + high)
    pessimistic = torch.maximum(unclipped, clipped)
    floor = -advantages * dual
    losses = torch.where(advantages < 0, torch.minimum(floor, pessimistic), pessimistic)
    if rollout_is_weights is not None:
        losses = losses * rollout_is_weights
    loss = agg_loss(loss_mat=losses, loss_mask=response_mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    is_floored = (pessimistic > floor) & (advantages < 0)
    metrics = {
        "actor/pg_clipfrac": masked_mean((clipped > unclipped).float(), response_mask).item(),
        "actor/ppo_kl": masked_mean(-log_ratio, response_mask).item(),
        "actor/pg_clipfrac_lower": masked_mean(is_floored.float(), response_mask).item(),
    }
    return loss, metrics
