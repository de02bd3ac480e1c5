#!/usr/bin/env bash
# GRPO on SWE-rebench: issues of many Python repositories, one container image a task. SWE_SANDBOXES starts containers.
# SWE_SANDBOXES=podman MODEL=... DATA=... ./run_swe_rebench.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
source "$here/swe.sh"
: "${NAME:=swe-rebench-grpo}"
source "$here/../train.sh"
forwarded+=(SWE_SANDBOXES)
train "${asynchronous[@]}" "${long[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" "$@"
