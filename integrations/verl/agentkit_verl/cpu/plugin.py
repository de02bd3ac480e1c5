"""What verl loads in each of its processes to run on CPUs: `VERL_USE_EXTERNAL_MODULES=agentkit_verl.cpu.plugin`.

No file of verl is changed. Everything is registered where verl lets others register, with two exceptions that have no
such place: the table of weight adapters is private, and the name of the process group's back end is put together in a
way that torch refuses for CPUs.
"""
# pyright: basic, reportMissingImports=false
# torch and verl are not installed where pyright runs.

from typing import Any

import torch.distributed
from verl.plugin.platform import PlatformRegistry, set_platform

from agentkit_verl.cpu.platform import CPUPlatform
from agentkit_verl.cpu.settings import ROLLOUT
from agentkit_verl.version import check_verl_version


def _replica() -> type:
    from agentkit_verl.cpu.replica import CPUReplica

    return CPUReplica


def _allow_gloo() -> None:
    """A run on CPUs asks for a back end for CPUs and one for its device, the CPU: torch wants each device once."""
    original = torch.distributed.init_process_group
    if getattr(original, "_agentkit", False):
        return

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    init_process_group._agentkit = True  # type: ignore[attr-defined]
    torch.distributed.init_process_group = init_process_group


def _register() -> None:
    check_verl_version()
    PlatformRegistry.register(platform="cpu")(CPUPlatform)
    set_platform(CPUPlatform())
    _allow_gloo()

    # these look at the platform when they are imported
    from verl.workers.engine.base import EngineRegistry
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
    from verl.workers.rollout.base import _ROLLOUT_REGISTRY
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    # It registers itself: where it is what loads verl, and so this plugin, it is not through yet.
    import agentkit_verl.cpu.weights  # noqa: F401

    for kind, engine in (("language_model", FSDPEngineWithLMHead), ("value_model", FSDPEngineWithValueHead)):
        EngineRegistry.register(model_type=kind, backend=["fsdp", "fsdp2"], device="cpu")(engine)
    RolloutReplicaRegistry.register(ROLLOUT, _replica)
    _ROLLOUT_REGISTRY[(ROLLOUT, "async")] = "agentkit_verl.cpu.replica.CPUWeightAdapter"


_register()
