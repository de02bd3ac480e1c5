#!/usr/bin/env bash
# GRPO on R2E-Gym: issues of Python repositories, one container image a task. SWE_SANDBOXES is what starts containers.
# SWE_SANDBOXES=podman MODEL=... DATA=... ./run_r2e_gym.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/swe.sh"
: "${NAME:=r2e-gym-grpo}"
source "$here/../train.sh"
forwarded+=(SWE_SANDBOXES)
train "${asynchronous[@]}" "${long[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" "$@"
