#!/usr/bin/env bash
# GSPO, synchronous: one importance ratio a sequence (Zheng et al. 2025, arXiv 2507.18071), clipped as in its section 5.
# MODEL=... DATA=... ./run_gspo.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${NAME:=gsm8k-gspo}" "${BATCH:=64}"
source "$here/../train.sh"
train "${synchronous[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" \
  actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
  actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
  actor_rollout_ref.actor.clip_ratio_low=3e-4 \
  actor_rollout_ref.actor.clip_ratio_high=4e-4 \
  actor_rollout_ref.actor.ppo_mini_batch_size=$((BATCH / 4)) \
  "$@"
