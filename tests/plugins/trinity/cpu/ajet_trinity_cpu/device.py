"""A CPU in the place of a CUDA device, as far as verl 0.8 and Trinity look. verl imports this module first."""

from __future__ import annotations

import importlib.abc
import sys
import types
from collections.abc import Sequence
from typing import Any

import psutil
import torch
import torch.distributed
import verl.utils.device

from ajet_trinity_cpu import weights


class Device(types.ModuleType):
    """What verl calls of `torch.cuda`."""

    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    set_rng_state = staticmethod(lambda state, device=None: torch.set_rng_state(state))
    get_device_name = staticmethod(lambda device=None: "CPU")
    empty_cache = ipc_collect = staticmethod(lambda: None)
    reset_peak_memory_stats = staticmethod(lambda device=None: None)
    set_per_process_memory_fraction = staticmethod(lambda share, device=None: None)
    set_device = staticmethod(lambda *_: None)
    synchronize = staticmethod(lambda *_: None)
    manual_seed = manual_seed_all = staticmethod(lambda seed: torch.manual_seed(seed))
    device_count = staticmethod(lambda: 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def memory_allocated(self, device: Any = None) -> int:
        return int(psutil.Process().memory_info().rss)

    memory_reserved = max_memory_allocated = max_memory_reserved = memory_allocated

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total


class Late(importlib.abc.MetaPathFinder):
    """Patches what can be imported only after verl itself, as soon as something asks for verl's workers."""

    done = False

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "verl.workers.engine_workers" and not self.done:
            self.done = True
            _take_cudas_engine()
            weights.keep_precision()


def _take_cudas_engine() -> None:
    """Let verl choose the engine that is registered for CUDA."""
    from verl.workers.engine import base

    own = base.get_device_name
    base.get_device_name = lambda: "cuda" if sys._getframe(1).f_code.co_name == "get_engine_cls" else own()


def _init_process_group(backend: Any = None, *arguments: Any, **settings: Any) -> Any:
    if isinstance(backend, str) and backend.count("cpu:") > 1:  # one for the CPU and one for the device
        backend = "cpu:gloo"
    return _original(backend, *arguments, **settings)


_device = Device("ajet_trinity_cpu_device")
_original = torch.distributed.init_process_group
verl.utils.device.get_torch_device = lambda: _device
verl.utils.device.get_device_id = lambda: "cpu"
verl.utils.device.get_resource_name = lambda: "GPU"
verl.utils.device.get_nccl_backend = lambda: "gloo"
torch.distributed.init_process_group = _init_process_group
torch.Tensor.pin_memory = lambda tensor, *_: tensor  # type: ignore[method-assign,assignment]
torch.cuda.get_device_capability = lambda *_: (8, 0)
torch.cuda.synchronize = torch.cuda.empty_cache = lambda *_: None
sys.meta_path.insert(0, Late())
