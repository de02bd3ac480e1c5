"""The CPU as one of verl's platforms."""
# pyright: basic, reportMissingImports=false
# torch and verl are not installed where pyright runs.

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase


class _DeviceModule(ModuleType):
    """What verl asks of `torch.cuda`, answered for CPUs: nothing is allocated, nothing runs asynchronously."""

    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> str:
        return "cpu"

    def get_device_name(self, *_: object) -> str:
        return "cpu"

    def mem_get_info(self, *_: object) -> tuple[int, int]:
        """Free and total bytes: verl divides by the second."""
        return 1 << 30, 1 << 30

    def get_rng_state(self, *_: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_: object) -> None:
        torch.set_rng_state(state)

    def stream(self, *_: object) -> Any:
        return nullcontext()

    def __getattr__(self, name: str) -> Callable[..., int]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing  # memory_allocated, max_memory_reserved, empty_cache, synchronize, ...


def _nothing(*_: object, **__: object) -> int:
    return 0


class CPUPlatform(PlatformBase):
    """One device named `cpu`. Processes talk to each other by gloo.

    Ray is asked for "GPU" like on a machine that has some: verl's placement groups want a resource, and
    `ray.init(num_gpus=N)` grants it without one being there.
    """

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _DeviceModule("agentkit_verl.cpu.device")

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"  # not an index: verl hands it to `Tensor.to`

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
