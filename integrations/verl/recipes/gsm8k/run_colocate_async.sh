#!/usr/bin/env bash
# GRPO, partial rollouts on the same GPUs: when a batch is there, what is still being sampled is interrupted, and goes on
# behind the update with the new weights. MODEL=... DATA=... ./run_colocate_async.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${NAME:=gsm8k-colocate-async}"
source "$here/../train.sh"
train "${asynchronous[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" \
  trainer.v1.trainer_mode=agentkit_colocate_async \
  trainer.v1.colocate_async.num_warmup_batches=0.5 \
  "$@"
