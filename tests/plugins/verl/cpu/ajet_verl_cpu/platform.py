"""The CPU as a platform of verl, through its public registry. Loaded in every process that imports verl
(entry point group ``verl.plugins``)."""

from __future__ import annotations

import contextlib
import os
import types
from collections.abc import Iterator
from typing import Any

import psutil
import torch
import verl.utils.distributed
from verl.plugin.platform import PlatformBase, PlatformRegistry


class Device(types.ModuleType):
    """torch.cpu, and what else verl calls on torch.cuda: memory, of this process and machine, and random numbers."""

    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_device_name = staticmethod(lambda device=None: "CPU")
    empty_cache = ipc_collect = staticmethod(lambda: None)
    reset_peak_memory_stats = staticmethod(lambda device=None: None)
    set_per_process_memory_fraction = staticmethod(lambda fraction, device=None: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def memory_allocated(self, device: Any = None) -> int:
        return int(psutil.Process().memory_info().rss)

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """Ray schedules a CPU rank as a "GPU": start Ray with ``num_gpus`` = number of ranks."""

    device_name = vendor_name = "cpu"
    device_module = Device("ajet_verl_cpu_device")

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # chosen by VERL_PLATFORM=cpu, never found

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # verl asks Ray for these; a resource of another name is not spread over ranks

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # weights go to vLLM through POSIX shared memory

    def cudart(self) -> None:
        return None


def _one_backend_for_the_device() -> None:
    """verl asks torch for "cpu:gloo,<device>:<backend>", where torch refuses a device that is named twice."""
    begin = verl.utils.distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: Any = None, backend: str | None = None) -> None:
        begin(timeout_second, backend or "cpu:gloo")

    verl.utils.distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def _nothing_to_pin() -> None:
    """verl offloads its reference model, and FSDP pins what is offloaded, for which torch wants an accelerator."""
    torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign]


if os.environ.get("VERL_PLATFORM") == "cpu":
    _one_backend_for_the_device()
    _nothing_to_pin()
