"""What has to be set for verl to train without a GPU."""

import os
from collections.abc import Mapping
from typing import Final

PLUGIN: Final = "agentkit_verl.cpu.plugin"
"""The module that verl has to load in each process, named in `VERL_USE_EXTERNAL_MODULES`."""

ROLLOUT: Final = "agentkit_cpu"
"""`actor_rollout_ref.rollout.name`, and under `engine_kwargs` where the server's own settings stand."""

WEIGHTS: Final = "agentkit_cpu"
"""`checkpoint_engine.backend` where trainer and rollout server do not share a process (`separate_async`)."""

_EXTERNAL: Final = "VERL_USE_EXTERNAL_MODULES"


def environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """`base`, by default this process's, with what verl's processes have to find in theirs.

    Modules that `VERL_USE_EXTERNAL_MODULES` names already are kept, after the plugin.
    """
    found = dict(os.environ if base is None else base)
    modules = [name for name in found.get(_EXTERNAL, "").split(",") if name and name != PLUGIN]
    return found | {
        _EXTERNAL: ",".join([PLUGIN, *modules]),
        "TORCH_COMPILE_DISABLE": "1",  # it wants a compiler, and takes longer than tiny models save
        "OMP_NUM_THREADS": found.get("OMP_NUM_THREADS", "1"),
    }


def overrides(*, workers: int = 1, ray_cpus: int = 32) -> list[str]:
    """Hydra overrides for `verl.trainer.main_ppo` on CPUs: append one's own, the last of two settings holds.

    Args:
        workers: Processes that train, each with a rollout server of its own.
        ray_cpus: CPUs that Ray is told of, which need not exist. Each of verl's processes takes one and waits for it
            without a word, so that the machine's own number is seldom enough.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}: there must be at least one process that trains")
    model, actor, ref, rollout = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "ref", "rollout"))
    return [
        "trainer.device=cpu",
        "trainer.nnodes=1",
        f"trainer.n_gpus_per_node={workers}",
        f"ray_kwargs.ray_init.num_cpus={ray_cpus}",
        f"+ray_kwargs.ray_init.num_gpus={workers}",  # what verl's placement groups ask for: none is used
        "+ray_kwargs.ray_init.include_dashboard=false",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        f"{model}.use_remove_padding=false",  # its kernels are for GPUs
        f"{model}.enable_gradient_checkpointing=false",
        f"+{model}.override_config.attn_implementation=sdpa",
        f"{actor}.strategy=fsdp2",
        f"{actor}.fsdp_config.strategy=fsdp2",
        f"{actor}.fsdp_config.model_dtype=fp32",
        f"{actor}.fsdp_config.dtype=float32",
        f"+{actor}.fsdp_config.mixed_precision.param_dtype=fp32",  # or the trainer's log-probs are bfloat16's
        f"{ref}.fsdp_config.model_dtype=fp32",
        f"{ref}.fsdp_config.dtype=float32",
        f"+{ref}.fsdp_config.mixed_precision.param_dtype=fp32",
        f"{actor}.use_torch_compile=false",
        f"{rollout}.name={ROLLOUT}",
        f"{rollout}.dtype=float32",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.calculate_log_probs=true",
    ]
