"""Estimate a job's memory before anything is loaded, and what would make it fit.

The estimate is the sum of what lasts (weights, gradients, moments, copies, the engine's cache) and what autograd
saves of one micro-batch for the backward pass. The latter is counted for a Llama-like decoder layer, assuming that
every token is trained and so has logits.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ajet.types import AjetError, ConfigError
from ajet_local.modeling import checked_source, first_line
from ajet_local.sizes import format_size
from ajet_lora.adapters import has_suffix

if TYPE_CHECKING:
    from ajet.learning.settings import LoraSettings

MOST_TOKENS, FEWEST_TOKENS = 16384, 256
"""Bounds of a micro-batch's tokens if its size is chosen to fit. A longer sample is alone in one."""
LEAST_CACHED = 16384
"""Minimum tokens in the engine's cache if its size is chosen to fit: for example 8 sequences of 2048."""
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model, from its config."""

    parameters: int
    layers: int
    hidden: int
    queries: int
    """Width of a token's queries, all heads together."""
    keys: int
    """Width of a token's keys, all heads together."""
    inner: int
    """Width of the feed-forward layer."""
    vocabulary: int
    linear: Mapping[str, tuple[int, int]]
    """Name -> (inputs, outputs) of every linear layer except the head."""

    @classmethod
    def of(cls, source: str | Path) -> Shape:
        """From a model's config, without loading weights. Raises AjetError if there is no such model."""
        try:
            config = AutoConfig.from_pretrained(checked_source(source))
        except (OSError, ValueError) as error:
            raise AjetError(f"model {source}: {first_line(error)}. Check the path or the Hub id.") from error
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(config))

    @classmethod
    def of_model(cls, model: Any) -> Shape:
        """From a model, which may be on the device ``meta``."""
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        head = model.get_output_embeddings()
        return cls(
            parameters=sum(p.numel() for p in model.parameters()),
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            queries=heads * size,
            keys=(getattr(config, "num_key_value_heads", None) or heads) * size,
            inner=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
            vocabulary=config.vocab_size,
            linear={
                name: (m.in_features, m.out_features)
                for name, m in model.named_modules()
                if isinstance(m, torch.nn.Linear) and m is not head
            },
        )

    def adapter_parameters(self, settings: LoraSettings) -> int:
        """Number of parameters of one adapter."""
        return settings.rank * sum(
            inputs + outputs
            for name, (inputs, outputs) in self.linear.items()
            if has_suffix(name, settings.modules)
        )

    def cached(self, tokens: int, number: int) -> int:
        """Bytes of the keys and values of ``tokens`` tokens, with ``number`` bytes for each number."""
        return tokens * self.layers * 2 * self.keys * number

    @property
    def layer_width(self) -> int:
        """How many numbers a layer saves for each token until the backward pass: inputs and outputs of two norms, those of
        queries and keys, attention over repeated keys and values, and four of the feed-forward layer."""
        return 6 * self.hidden + 6 * self.queries + 2 * self.keys + 4 * self.inner


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides the memory of a job."""

    shape: Shape
    tokens: int
    """Tokens of a micro-batch."""
    cache: int
    """Maximum bytes of the engine's keys and values."""
    number: int = FLOAT32
    """Bytes of one number in the model's computations."""
    adapters: int | None = None
    """Number of weights of all adapters together; None: the model's own weights are trained."""
    trained: int = 0
    """Number of weights of the trained adapters."""
    asynchronous: bool = False
    reference: int = 0
    """Number of weights of the reference model."""
    checkpointing: bool = False
    entropy: bool = False
    program: int = 0
    """Bytes that the process already uses."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of each part, by its name in messages."""
        whole = self.adapters is None
        weights, trained = (self.shape.parameters, self.shape.parameters if whole else self.trained)
        parts = {
            "the program": self.program,
            "weights": weights * (FLOAT32 if whole else self.number),
            "adapters": (self.adapters or 0) * FLOAT32,
            "gradients": trained * FLOAT32,
            "AdamW": 2 * trained * FLOAT32,
            "the engine's copy": self._copy(),
            "the reference": self.reference * self.number,
            "the engine's cache": self.cache,
            f"activations of {self.tokens} tokens": self.activations,
        }
        return {name: size for name, size in parts.items() if size}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def saved(self) -> int:
        """Bytes that autograd saves of a micro-batch until the backward pass, without its logits."""
        layer = self.shape.layer_width * self.number
        if self.checkpointing:
            return self.tokens * (self.shape.layers * self.shape.hidden * self.number + layer)
        return self.tokens * self.shape.layers * layer

    @property
    def activations(self) -> int:
        """Peak bytes of a micro-batch: what autograd saves, the gradients of one layer, and four tensors of logits: as
        computed, scaled, as logprobs and their gradient. The entropy needs two more of these."""
        layer = self.tokens * self.shape.layer_width * self.number
        logits = self.tokens * self.shape.vocabulary * (self.number + (4 if self.entropy else 2) * FLOAT32)
        return self.saved + layer + logits

    def _copy(self) -> int:
        if self.adapters is not None:
            return self.adapters * FLOAT32 if self.asynchronous else 0
        return self.shape.parameters * self.number if self.asynchronous or self.number != FLOAT32 else 0


def fitting_tokens(demand: Demand, limit: int) -> int | None:
    """The largest micro-batch within ``limit`` bytes, a power of two; None if even the smallest is too big."""
    tokens = MOST_TOKENS
    while tokens >= FEWEST_TOKENS:
        if replace(demand, tokens=tokens).total <= limit:
            return tokens
        tokens //= 2
    return None


def fit(demand: Demand, limit: int, *, tokens: int | None, cache: int | None) -> Demand:
    """The demand with a micro-batch and a cache that fit into ``limit`` bytes. Given sizes are kept. Otherwise the
    cache is a quarter of the limit, halved until there is room for the rest, down to `LEAST_CACHED` tokens. The result
    may still exceed the limit: callers compare its `total` and raise `refuse`."""
    least = min(demand.shape.cached(LEAST_CACHED, demand.number), limit // 4) if cache is None else cache
    demand = replace(demand, cache=limit // 4 if cache is None else cache, tokens=tokens or FEWEST_TOKENS)
    while demand.total > limit and demand.cache > least:
        demand = replace(demand, cache=max(demand.cache // 2, least))
    return replace(demand, tokens=tokens or fitting_tokens(demand, limit) or FEWEST_TOKENS)


def refuse(demand: Demand, limit: int, why: str) -> ConfigError:
    """An error of one line: what the job needs, its parts, and what would make it fit into ``limit`` bytes."""
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in demand.parts.items())
    return ConfigError(
        f"backbone.local: the job needs about {format_size(demand.total)}, but there are {format_size(limit)} ({why}): "
        f"{parts}. {_remedy(demand, limit)}"
    )


def _remedy(demand: Demand, limit: int) -> str:
    changes = list(_changes(demand, limit))
    sufficient = [text for text, fields in changes if replace(demand, **fields).total <= limit]
    if sufficient:
        return f"It would fit with {' or with '.join(sufficient)}."
    changed, texts = demand, []
    for text, fields in changes:
        changed = replace(changed, **fields)
        texts.append(text)
        if changed.total <= limit:
            return f"It would fit with {' and '.join(texts)} together."
    return f"Nothing makes it fit: it takes at least {format_size(changed.total)}. Use a smaller model or raise the limit."


def _changes(demand: Demand, limit: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings that would lower the demand, each with the fields of `Demand` that it changes."""
    tokens = fitting_tokens(demand, limit) or FEWEST_TOKENS
    if tokens < demand.tokens:
        yield f"micro_batch_tokens: {tokens}", {"tokens": tokens}
    least = demand.shape.cached(LEAST_CACHED, demand.number)
    if demand.cache > least:
        mib = (least >> 20) + 1
        yield f"cache_mib: {mib} ({LEAST_CACHED} tokens)", {"cache": mib << 20}
    if not demand.checkpointing:
        yield "gradient_checkpointing: true", {"checkpointing": True}
    if demand.adapters is None:
        size = 16 * sum(map(sum, demand.shape.linear.values()))
        yield "a lora", {"adapters": size, "trained": size, "reference": 0}


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
    """Free bytes of the device; on a CPU at most what its container allows."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_linux_limits()])


def resident() -> int:
    """Bytes of memory that this process uses; 0 where that is unknown."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0


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
