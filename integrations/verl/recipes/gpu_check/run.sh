#!/usr/bin/env bash
# A few steps of GRPO with vLLM on one GPU: whether all of it works there, and how fast.
# DATA=... ./run.sh [hydra overrides] 2>&1 | tee check.log; python -m recipes.gpu_check.figures check.log
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export MODEL="${MODEL:?MODEL must be a small model, such as Qwen/Qwen2.5-0.5B-Instruct}"
export NAME="${NAME:-gpu-check}" GPUS="${GPUS:-1}" BATCH="${BATCH:-16}" GROUP="${GROUP:-4}" WORKERS="${WORKERS:-2}"
export PROMPT_TOKENS="${PROMPT_TOKENS:-1024}" RESPONSE_TOKENS="${RESPONSE_TOKENS:-2048}"
exec "$here/../gsm8k/run_grpo.sh" \
  trainer.total_training_steps="${STEPS:-6}" \
  trainer.save_freq=-1 \
  trainer.resume_mode=disable \
  "$@"
