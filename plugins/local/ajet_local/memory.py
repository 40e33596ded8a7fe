"""How much memory a job will take, before anything of it is loaded, and what would make it fit.

The parts are those that last (weights, gradients, moments, copies, the sampler's cache) and what one
micro-batch keeps for its backward pass. The latter is counted for a decoder layer of the Llama kind as
autograd saves it; a token is assumed to be trained, so that its logits are there, too.
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
from ajet_local.modeling import checked_source, first_line, is_called
from ajet_local.sizes import format_size

if TYPE_CHECKING:
    from ajet.job.config import LoraSettings

MOST_TOKENS, FEWEST_TOKENS = 16384, 256
"""Of a micro-batch that is chosen to fit. A longer sample is alone in one, and takes what it takes."""
LEAST_CACHED = 16384
"""Tokens that the sampler's cache holds at least where its size is ours to choose: 8 sequences of 2048, say."""
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model's config says of its size."""

    parameters: int
    layers: int
    hidden: int
    queries: int
    """Width of a token's queries, all heads together."""
    keys: int
    inner: int
    """Width of the feed-forward layer."""
    vocabulary: int
    linear: Mapping[str, tuple[int, int]]
    """Name -> (inputs, outputs) of every linear layer but the head."""

    @classmethod
    def of(cls, source: str | Path) -> Shape:
        """From a model's config; no weights are loaded. Raises AjetError."""
        try:
            config = AutoConfig.from_pretrained(checked_source(source))
        except (OSError, ValueError) as error:
            raise AjetError(f"model {source}: {first_line(error)}. Check the path or the Hub id.") from error
        with torch.device("meta"):
            return cls.of_model(AutoModelForCausalLM.from_config(config))

    @classmethod
    def of_model(cls, model: Any) -> Shape:
        """From a model, which may be on the device "meta"."""
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
        """Of one adapter."""
        return settings.rank * sum(
            inputs + outputs
            for name, (inputs, outputs) in self.linear.items()
            if is_called(name, settings.modules)
        )

    def cached(self, tokens: int, number: int) -> int:
        """Bytes of the keys and values of so many tokens, in numbers of so many bytes."""
        return tokens * self.layers * 2 * self.keys * number

    @property
    def layer_width(self) -> int:
        """Numbers that a layer keeps of a token for its backward pass: two norms with their inputs and outputs,
        those of queries and keys, attention over repeated keys and values, and four of the feed-forward layer."""
        return 6 * self.hidden + 6 * self.queries + 2 * self.keys + 4 * self.inner


@dataclass(frozen=True, slots=True)
class Demand:
    """A job as far as memory is concerned."""

    shape: Shape
    tokens: int
    """Of a micro-batch."""
    cache: int
    """Bytes of the sampler's keys and values, at most."""
    number: int = FLOAT32
    """Bytes of a number that the model computes with."""
    adapters: int | None = None
    """Weights of all adapters together; None: all weights of the model are trained."""
    trained: int = 0
    """Weights of the adapters that are trained."""
    asynchronous: bool = False
    reference: int = 0
    """Weights of a reference model."""
    checkpointing: bool = False
    entropy: bool = False
    program: int = 0
    """Bytes that are taken already."""

    @property
    def parts(self) -> dict[str, int]:
        """Bytes by what they are for."""
        whole = self.adapters is None
        weights, moved = (self.shape.parameters, self.shape.parameters if whole else self.trained)
        found = {
            "the program": self.program,
            "weights": weights * (FLOAT32 if whole else self.number),
            "adapters": (self.adapters or 0) * FLOAT32,
            "gradients": moved * FLOAT32,
            "AdamW": 2 * moved * FLOAT32,
            "the sampler's copy": self._copy(),
            "the reference": self.reference * self.number,
            "the sampler's cache": self.cache,
            f"activations of {self.tokens} tokens": self.activations,
        }
        return {name: size for name, size in found.items() if size}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def saved(self) -> int:
        """Bytes that autograd keeps of a micro-batch until the backward pass, without its logits."""
        layer = self.shape.layer_width * self.number
        if self.checkpointing:
            return self.tokens * (self.shape.layers * self.shape.hidden * self.number + layer)
        return self.tokens * self.shape.layers * layer

    @property
    def activations(self) -> int:
        """Bytes of a micro-batch at their most: what is saved, a layer's gradients, and the logits, scaled,
        as logprobs, and once more as their gradient; the entropy needs two more of them."""
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
    """The demand with a micro-batch and a cache that fit into ``limit`` bytes. Those that are given stay; otherwise the
    cache is a quarter of the limit, halved until there is room for the rest, down to `LEAST_CACHED` tokens. The result
    may still exceed the limit. Callers compare `total` with it and raise `refuse`."""
    least = min(demand.shape.cached(LEAST_CACHED, demand.number), limit // 4) if cache is None else cache
    demand = replace(demand, cache=limit // 4 if cache is None else cache, tokens=tokens or FEWEST_TOKENS)
    while demand.total > limit and demand.cache > least:
        demand = replace(demand, cache=max(demand.cache // 2, least))
    return replace(demand, tokens=tokens or fitting_tokens(demand, limit) or FEWEST_TOKENS)


def refuse(demand: Demand, limit: int, why: str) -> ConfigError:
    """The one line that says what the job needs, of which parts, and what would fit into ``limit`` bytes."""
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in demand.parts.items())
    return ConfigError(
        f"backbone.local: the job needs about {format_size(demand.total)}, but there are {format_size(limit)} ({why}): "
        f"{parts}. {_remedy(demand, limit)}"
    )


def _remedy(demand: Demand, limit: int) -> str:
    changes = list(_changes(demand, limit))
    alone = [text for text, fields in changes if replace(demand, **fields).total <= limit]
    if alone:
        return f"It would fit with {' or with '.join(alone)}."
    changed, texts = demand, []
    for text, fields in changes:
        changed = replace(changed, **fields)
        texts.append(text)
        if changed.total <= limit:
            return f"It would fit with {' and '.join(texts)} together."
    return f"Nothing makes it fit: it takes at least {format_size(changed.total)}. Take a smaller model or raise the limit."


def _changes(demand: Demand, limit: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """What can be changed, each with the fields that it changes."""
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
    """Whether an error says that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    text = str(error)
    return system or (
        isinstance(error, RuntimeError) and ("can't allocate memory" in text or "out of memory" in text)
    )


def free_memory(device: torch.device) -> int:
    """Bytes that the device has left."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_linux_limits()])


def resident() -> int:
    """Bytes that this process has in the machine's memory; 0 where that is not known."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.is_file() else 0


def _linux_limits() -> Iterator[int]:
    """What is available, in the machine and in the container around."""
    meminfo, group = Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if meminfo.is_file():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10
    most, used = group / "memory.max", group / "memory.current"
    if most.is_file() and used.is_file() and (text := most.read_text().strip()) != "max":
        yield max(int(text) - int(used.read_text()), 0)
