# What every recipe has in common. Source it, then call `train [hydra overrides]`; later overrides win.
#
# In the environment: MODEL and DATA (required: a model folder or hub name; a Parquet file of prepare_data.py), VAL (DATA),
# NNODES (1), GPUS (8, of each node), TP (1, GPUS that share one copy of the policy when it samples), PROMPT_TOKENS,
# RESPONSE_TOKENS, BATCH (tasks a step), GROUP (rollouts a task), LR, WORKERS (processes that run agents), NAME, OUT.

RECIPES="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
: "${MODEL:?MODEL must be a model folder or a hub name}"
: "${DATA:?DATA must be a Parquet file that prepare_data.py wrote}"
: "${VAL:=$DATA}" "${NNODES:=1}" "${GPUS:=8}" "${TP:=1}"
: "${PROMPT_TOKENS:=2048}" "${RESPONSE_TOKENS:=6144}"
: "${BATCH:=64}" "${GROUP:=8}" "${LR:=1e-6}" "${WORKERS:=8}"
: "${NAME:=agentkit}" "${OUT:=checkpoints/$NAME}"

# What agent.yaml names (recipes.*) is imported in every process, on every node.
export PYTHONPATH="${RECIPES%/recipes}${PYTHONPATH:+:$PYTHONPATH}"
export VERL_USE_EXTERNAL_MODULES="${VERL_USE_EXTERNAL_MODULES:+$VERL_USE_EXTERNAL_MODULES,}agentkit_verl.plugin"
forwarded=(PYTHONPATH VERL_USE_EXTERNAL_MODULES)

# One sequence of the longest kind must fit; two a micro batch keep a GPU of 80 GB busy with a 7B policy.
tokens_a_gpu=$((2 * (PROMPT_TOKENS + RESPONSE_TOKENS)))

train() {
  local overrides=(
    algorithm.adv_estimator=agentkit_grpo  # GRPO that counts rollouts, not rows; a lone survivor gets no advantage
    algorithm.use_kl_in_reward=False

    data.train_files="$DATA"
    data.val_files="$VAL"
    data.train_batch_size="$BATCH"
    data.max_prompt_length="$PROMPT_TOKENS"       # the agent's tools are part of the prompt: leave room for them
    data.max_response_length="$RESPONSE_TOKENS"   # all turns of a rollout, observations too
    data.filter_overlong_prompts=True
    data.truncation=error

    actor_rollout_ref.model.path="$MODEL"
    actor_rollout_ref.model.enable_gradient_checkpointing=True
    # Rollouts differ tenfold in length: no padding goes through the model, and micro batches are packed by tokens.
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$tokens_a_gpu"

    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
    actor_rollout_ref.actor.optim.lr="$LR"
    actor_rollout_ref.actor.ppo_mini_batch_size="$BATCH"  # in tasks: one update a step, on-policy
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.entropy_coeff=0

    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.mode=async
    actor_rollout_ref.rollout.n="$GROUP"
    actor_rollout_ref.rollout.tensor_model_parallel_size="$TP"
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    actor_rollout_ref.rollout.enable_prefix_caching=True  # each turn sends the whole chain: only its end is new
    actor_rollout_ref.rollout.max_model_len=$((PROMPT_TOKENS + RESPONSE_TOKENS))
    actor_rollout_ref.rollout.calculate_log_probs=True    # of what was sampled: for the mismatch metric and its correction
    actor_rollout_ref.rollout.multi_turn.enable=True
    actor_rollout_ref.rollout.agent.default_agent_loop=agentkit
    actor_rollout_ref.rollout.agent.num_workers="$WORKERS"

    reward.num_workers=1  # idle: rewards are given inside the rollout, while its env is still open

    trainer.nnodes="$NNODES"
    trainer.n_gpus_per_node="$GPUS"
    trainer.project_name=agentkit
    trainer.experiment_name="$NAME"
    trainer.default_local_dir="$OUT"
    trainer.logger=[console]
    trainer.val_before_train=False
    trainer.test_freq=-1
    trainer.save_freq=50
    trainer.total_epochs=1
  )
  local name
  for name in "${forwarded[@]}"; do
    overrides+=("+ray_kwargs.ray_init.runtime_env.env_vars.$name='${!name}'")
  done
  exec "${PYTHON:-python3}" -m verl.trainer.main_ppo "${overrides[@]}" "$@"
}

# All rollouts of a step are waited for; a task whose rollouts were all lost is replaced, so that no step is short.
synchronous=(
  trainer.v1.trainer_mode=agentkit_sync
  trainer.v1.sampler.sync_refill_failed_groups=True
  data.gen_batch_size=1
)

# Generation goes on while the trainer works. A rollout may span several policy versions; its tokens know which.
asynchronous=(
  trainer.v1.sampler.max_off_policy_threshold="${MAX_STALE:-4}"       # versions a task's rollouts may span
  trainer.v1.sampler.max_off_policy_strategy="${STALE_STRATEGY:-drop}"  # or wait: nothing is thrown away, steps take longer
  data.gen_batch_size=1
  algorithm.rollout_correction.rollout_is=token                       # truncated importance weights, sampled vs. trained policy
  algorithm.rollout_correction.rollout_is_threshold=2.0
)
