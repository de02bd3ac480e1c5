# What both SWE recipes have in common; sourced before train.sh.
export SWE_SANDBOXES="${SWE_SANDBOXES:?SWE_SANDBOXES must name a type of sandboxes that start images: podman, docker, modal, or package.module:Class}"
: "${BATCH:=32}" "${GROUP:=8}" "${PROMPT_TOKENS:=8192}" "${RESPONSE_TOKENS:=57344}" "${TP:=2}" "${WORKERS:=16}"

# Rollouts take minutes, some of them many: the trainer does not wait for the last.
long=(
  trainer.v1.trainer_mode=agentkit_colocate_async
  trainer.v1.colocate_async.num_warmup_batches=1
  actor_rollout_ref.actor.ulysses_sequence_parallel_size=4  # one sequence of 65,536 tokens over four GPUs
  actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$(((PROMPT_TOKENS + RESPONSE_TOKENS) / 4))
  actor_rollout_ref.actor.fsdp_config.param_offload=True
  actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
  actor_rollout_ref.rollout.gpu_memory_utilization=0.7
)
