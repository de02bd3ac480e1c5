#!/usr/bin/env bash
# GRPO, synchronous: sample, update, sample. MODEL=... DATA=... ./run_grpo.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${NAME:=gsm8k-grpo}"
source "$here/../train.sh"
train "${synchronous[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" "$@"
