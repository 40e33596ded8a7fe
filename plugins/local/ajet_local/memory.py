"""The shape of a model that transformers knows, and the memory of this machine and its devices."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import AutoConfig

from ajet import AjetError
from ajet.estimate.devices import USABLE
from ajet.estimate.shape import ModelShape
from ajet_local.modeling import checked_source, first_line, model_class
from ajet_local.row_cache import EMPTY, CachedRows, keeps_states

log = logging.getLogger("ajet")

M_ARENA_MAX = -8
"""A parameter of `mallopt`, from glibc's malloc.h."""
MOST_FREED = 1 << 28
"""Bytes that glibc's heap may keep although nothing uses them. Those of small models stay below: they return none."""


def shape_of(source: str | Path) -> ModelShape:
    """The shape of a model of any architecture, without its weights. Raises AjetError if there is no such model."""
    try:
        config = AutoConfig.from_pretrained(checked_source(source), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise AjetError(f"model {source}", f"{first_line(error)}. Check the path or the Hub id.") from error
    return shape_of_config(config)


def shape_of_config(config: Any) -> ModelShape:
    """The shape of the model that a configuration of transformers describes."""
    with torch.device("meta"):  # where fused experts compute in bfloat16 alone
        model = model_class(config).from_config(config, dtype=torch.bfloat16)
    shape = shape_of_model(model)
    return replace(shape, **_of_states(model)) if keeps_states(model) else shape


def shape_of_model(model: Any) -> ModelShape:
    """The shape of a model, which may be on the device ``meta``."""
    config = model.config.get_text_config()
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    head = model.get_output_embeddings()
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        queries=heads * size,
        keys=(getattr(config, "num_key_value_heads", None) or heads) * size,
        inner=_inner(config),
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        linear={
            name: (m.in_features, m.out_features)
            for name, m in model.named_modules()
            if isinstance(m, torch.nn.Linear) and m is not head
        },
        tied=head is not None and head.weight is model.get_input_embeddings().weight,
        head_norms=any(name.endswith(".q_norm") for name, _ in model.named_modules()),
    )


PROBED = 256
"""Tokens in steps of which activations are counted: a multiple of the chunks in which scans compute."""


def _of_states(model: Any) -> dict[str, Any]:
    """What a model in bfloat16 on the device ``meta`` keeps of a context, and saves for the backward pass, if it has recurrent layers:
    fields of `ModelShape`. Passes tell, which cost nothing there."""
    try:
        rows, saved = _saved(model)
        try:
            exact = _saved(model.float())[1]
        except RuntimeError:
            exact = 2 * saved
    except Exception as error:  # kernels of a GPU may compute nothing there
        log.warning(
            "the memory of %r is estimated as if it had no recurrent layers: %s.",
            model.config.model_type,
            first_line(error),
        )
        return {}
    layers = rows[0].layers
    return {
        "past": sum(t.numel() // t.shape[-2] for layer in layers for t in layer.past or ()),
        "states": tuple(sum(t.numel() for layer in layers for t in layer.states[n].values()) for n in (0, 1)),
        "saved": (saved, exact),
    }


def _saved(model: Any) -> tuple[CachedRows, int]:
    """A pass over one context, and how many bytes autograd saves of each of its tokens."""
    weights = {StorageWeakRef(p.untyped_storage()) for p in model.parameters()}
    sizes = []
    for tokens in (PROBED, 2 * PROBED, 3 * PROBED):
        saved: dict[StorageWeakRef, torch.UntypedStorage] = {}

        def note(tensor: torch.Tensor, saved: Any = saved) -> torch.Tensor:
            storage = tensor.untyped_storage()
            saved[StorageWeakRef(storage)] = storage
            return tensor

        rows = CachedRows(model, [EMPTY])
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            rows.logits(torch.zeros(1, tokens, dtype=torch.long, device=model.device))
        sizes.append(sum(storage.nbytes() for of, storage in saved.items() if of not in weights))
    first, second = sizes[1] - sizes[0], sizes[2] - sizes[1]
    # Attention on ``meta`` saves all pairs of tokens, which kernels elsewhere do not: without what is quadratic.
    return rows, (first - 3 * (second - first) // 2) // PROBED


def _inner(config: Any) -> int:
    """Width of the feed-forward layer of a token: with experts, of all that the token uses."""
    width: int = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    if not any(
        getattr(config, name, None) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    ):
        return width
    return int(getattr(config, "moe_intermediate_size", None) or width) * int(config.num_experts_per_tok)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    text = str(error)
    return system or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def free_memory(device: torch.device) -> int:
    """Bytes of the device that a job can use of those that are free; on a CPU at most what its container allows."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * USABLE)
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_linux_limits()])


def resident() -> int:
    """Bytes of memory that this process uses; 0 where that is unknown."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0


def program_memory(device: torch.device) -> int:
    """Bytes that a job's memory limit must leave to this process: on a CPU what it uses now, and `MOST_FREED`; elsewhere none."""
    return resident() + MOST_FREED if device.type == "cpu" else 0


def _linux_limits() -> Iterator[int]:
    """Free bytes of the machine, and of the container that this process runs in."""
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10
    most, used = group / "memory.max", group / "memory.current"
    if most.is_file() and used.is_file() and (text := most.read_text().strip()) != "max":
        yield max(int(text) - int(used.read_text()), 0)


def share_heap() -> None:
    """Make glibc allocate from one arena, so that each thread can reuse memory that another has freed; does nothing with other C
    libraries.

    By default there are up to eight arenas per core. Sampling and updates run in several threads, with tensors of
    ever new sizes; each arena keeps its maximum, and a run's memory grows by gigabytes.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # absent in other C libraries
        if mallopt is not None:
            mallopt(M_ARENA_MAX, 1)


class _Heap(ctypes.Structure):
    """What glibc's `mallinfo2` returns: bytes, except for three counts."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "used",
            "free",
            "keep",
        )
    ]


def return_freed(device: torch.device) -> None:
    """Return what this process has freed to the system, if it is more than `MOST_FREED`; does nothing with other C libraries, and for
    models on other devices than a CPU.

    Tensors of a few MiB come from the heap, and one small block above them that stays, such as a kernel that was compiled for their
    shape, keeps all of it: an update's memory would be added to that of the sampling before it.
    """
    if device.type != "cpu" or sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):  # before glibc 2.33, and in other C libraries
        return
    library.mallinfo2.restype = _Heap
    if library.mallinfo2().free > MOST_FREED:
        library.malloc_trim(0)
