#!/usr/bin/env bash
# GRPO on questions that want to be looked up. SEARCH_URL is a retriever that speaks Search-R1's contract.
# SEARCH_URL=http://... MODEL=... DATA=... ./run.sh [hydra overrides]
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export SEARCH_URL="${SEARCH_URL:?SEARCH_URL must be the address of a retriever, such as http://10.0.0.7:8000}"
: "${NAME:=search-grpo}" "${BATCH:=128}" "${GROUP:=5}" "${RESPONSE_TOKENS:=8192}"
source "$here/../train.sh"
forwarded+=(SEARCH_URL)
train "${synchronous[@]}" actor_rollout_ref.rollout.agent.agent_loop_config_path="$here/agent.yaml" "$@"
