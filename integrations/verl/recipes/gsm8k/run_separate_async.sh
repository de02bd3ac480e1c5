#!/usr/bin/env bash
# GRPO, fully asynchronous: GPUs that only sample beside GPUs that only train. Partial rollouts: weights arrive in the
# middle of generations. ROLLOUT_NNODES x ROLLOUT_GPUS sample, NNODES x GPUS train; BATCH must be SYNC_STEPS updates.
# MODEL=... DATA=... ./run_separate_async.sh [hydra overrides]
# The training GPUs hold a sleeping rollout server, too: verl 0.9.1 fails on actor_rollout_ref.hybrid_engine=False, which would
# do without (it logs with an argument that its logger does not have).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${NAME:=gsm8k-separate-async}" "${BATCH:=64}" "${GPUS:=4}" "${ROLLOUT_NNODES:=1}" "${ROLLOUT_GPUS:=4}" "${SYNC_STEPS:=4}"
source "$here/../train.sh"
train "${asynchronous[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" \
  trainer.v1.trainer_mode=agentkit_separate_async \
  trainer.v1.separate_async.num_warmup_batches=1 \
  trainer.v1.separate_async.parameter_sync_step="$SYNC_STEPS" \
  actor_rollout_ref.actor.ppo_mini_batch_size=$((BATCH / SYNC_STEPS)) \
  actor_rollout_ref.rollout.nnodes="$ROLLOUT_NNODES" \
  actor_rollout_ref.rollout.n_gpus_per_node="$ROLLOUT_GPUS" \
  actor_rollout_ref.rollout.checkpoint_engine.backend=nccl \
  "$@"
