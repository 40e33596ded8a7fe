"""The memory of a job on one device: the trainer, and the engine in the same process or in its own. What fits, and what would make a
job fit.

The formulas are those of `ajet_trees.memory`. What is not set is chosen here: the cache of the engine is sized to what
the rest leaves, and activations are computed twice only where the job would not fit otherwise.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ajet import ConfigError
from ajet.estimate.devices import ASLEEP
from ajet.estimate.layout import ModelSizes
from ajet.estimate.shape import FLOAT32, ModelShape
from ajet_trees.cost import FUSED_LOGITS, LOGITS
from ajet_trees.memory import Training

MOST_TOKENS, FEWEST_TOKENS = 16384, 256
"""Bounds of a micro-batch's tokens if its size is chosen to fit. A longer sample is alone in one."""
USEFUL_TOKENS = 1024
"""Smaller micro-batches use a GPU badly: gradient checkpointing is cheaper."""
LEAST_CACHED, LEAST_CONTEXTS = 16384, 8
"""Minimum tokens in the engine's cache if its size is chosen to fit, and the contexts that they may be."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What decides the memory of a job."""

    training: Training
    tokens: int = 0
    """Tokens of a micro-batch."""
    cache: int = 0
    """Maximum bytes of the engine's keys and values."""
    asynchronous: bool = False
    reference: int = 0
    """Number of weights of the reference model."""
    program: int = 0
    """Bytes that the process already uses."""
    apart: bool = False
    """Whether an engine in its own process samples, which sleeps during updates unless the job is ``asynchronous``."""
    cached: int | None = None
    """Tokens that the job's episodes have at most at once, all that such an engine's cache is for; None: unknown."""
    eight_bit_cache: bool = False
    """Whether such an engine keeps keys and values with 8 bits each."""

    @classmethod
    def of(
        cls,
        sizes: ModelSizes,
        number: int,
        program: int = 0,
        *,
        eight_bits: bool = False,
        fused: bool = False,
    ) -> Demand:
        """The demand of a job whose computations have ``number`` bytes for each number. ``eight_bits``: of AdamW's moments. ``fused``:
        whether kernels of the head are compiled."""
        reference = 0
        if sizes.reference is not None:
            reference = sizes.reference.parameters
        elif sizes.keeps_first and not sizes.adapters:
            reference = sizes.shape.parameters
        training = Training(
            shape=sizes.shape,
            number=number,
            adapters=sizes.adapted,
            trained=sizes.learning,
            quantized=sizes.quantized,
            eight_bits=eight_bits,
            entropy=sizes.entropy,
            chunk=LOGITS,
            fused_chunk=FUSED_LOGITS if fused else 0,
        )
        return cls(training, asynchronous=sizes.asynchronous, reference=reference, program=program)

    @property
    def shape(self) -> ModelShape:
        """The shape of the trained model."""
        return self.training.shape

    @property
    def phases(self) -> dict[str, dict[str, int]]:
        """Bytes of each part, by the names of phase and part in messages. An engine in the same process keeps its memory."""
        of = self.training
        lasting = {
            "the program": self.program,
            "weights": of.weights,
            "adapters": (of.adapters or 0) * FLOAT32,
            "AdamW": of.moments,
            "the reference": self.reference * of.number,
        }
        updating = {
            "gradients": of.gradients,
            "converted weights": of.converted,
            f"activations of {self.tokens} tokens": of.activations(self.tokens),
        }
        cache = {"the engine's cache": self.cache}
        copied = {"the engine's copy": self._copy()}
        if self.apart:
            weights = (self.shape.parameters + (of.adapters or 0)) * of.number
            copied = {"the engine's weights": weights, "its passes and graphs": ASLEEP}
        if self.apart and not self.asynchronous:
            phases = {
                "sampling": {**lasting, **copied, **cache},
                "training": {**lasting, **updating, "the sleeping engine": ASLEEP},
            }
        else:
            phases = {"sampling and training": {**lasting, **copied, **updating, **cache}}
        return {name: {part: size for part, size in parts.items() if size} for name, parts in phases.items()}

    @property
    def parts(self) -> dict[str, int]:
        """Bytes of each part in the phase that needs most, by its name in messages."""
        return max(self.phases.values(), key=lambda parts: sum(parts.values()))

    @property
    def total(self) -> int:
        """Bytes of the phase that needs most."""
        return sum(self.parts.values())

    @property
    def least_cache(self) -> int:
        """Bytes of `LEAST_CACHED` tokens in `LEAST_CONTEXTS` contexts."""
        return LEAST_CONTEXTS * self.shape.held(LEAST_CACHED // LEAST_CONTEXTS, self.training.number)

    @property
    def most_cache(self) -> int:
        """Bytes of all that the job's episodes have at once, if an engine of its own keeps that; otherwise no bound."""
        if not self.apart or self.cached is None:
            return sys.maxsize
        return self.shape.cached(self.cached, self.cache_number)

    @property
    def cache_number(self) -> int:
        """Bytes of each number in the engine's cache."""
        return 1 if self.eight_bit_cache else self.training.number

    def checkpointed(self, checkpointing: bool) -> Demand:
        """The same demand with or without gradient checkpointing."""
        return replace(self, training=replace(self.training, checkpointing=checkpointing))

    def _copy(self) -> int:
        of = self.training
        if of.adapters is not None:
            return of.adapters * FLOAT32 if self.asynchronous else 0
        return self.shape.parameters * of.number if self.asynchronous or of.number != FLOAT32 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSizes:
    """The sizes that the user has set; None: chosen to fit."""

    tokens: int | None = None
    """Of a micro-batch."""
    cache: int | None = None
    """Bytes of the engine's cache."""
    checkpointing: bool | None = None


def fit(demand: Demand, limit: int, given: GivenSizes, *, shared: bool) -> Demand:
    """The demand with a micro-batch, a cache and, if necessary, checkpointing that fit into ``limit`` bytes. Given values are
    kept. Otherwise the micro-batch is the largest beside which a quarter of the limit is left for the cache, and the cache gets
    all that is left, at most half of the limit; only the quarter if other programs have the memory ``shared``. If even a
    micro-batch of `USEFUL_TOKENS` leaves less than a quarter, the cache gets that, at least `LEAST_CACHED` tokens. Without room for
    both, activations are computed twice, and at last micro-batches become as small as `FEWEST_TOKENS`. The result may still exceed
    the limit: callers compare its `total` and raise `refuse`."""
    options = (False, True) if given.checkpointing is None else (given.checkpointing,)
    for fewest in (USEFUL_TOKENS, FEWEST_TOKENS):
        for option in options:
            sized = _sized(demand.checkpointed(option), limit, given, fewest, limit // (4 if shared else 2))
            if sized.total <= limit:
                return sized
    return sized


def _sized(demand: Demand, limit: int, given: GivenSizes, fewest: int, most_cache: int) -> Demand:
    """The demand with the largest micro-batch, of at least ``fewest`` tokens, and the cache that fit beside each other; the
    smallest sizes if none do."""
    if demand.apart and not demand.asynchronous:
        return _sized_apart(demand, limit, given, fewest)
    most_cache = min(most_cache, demand.most_cache)
    wanted = min(limit // 4, most_cache) if given.cache is None else given.cache
    for size in (given.tokens,) if given.tokens else _sizes(fewest):
        sized = replace(demand, tokens=size, cache=0)
        room = limit - sized.total
        if room >= wanted:
            break
    if given.cache is not None:
        return replace(sized, cache=given.cache)
    return replace(sized, cache=min(max(room, min(demand.least_cache, wanted)), most_cache))


def _sized_apart(demand: Demand, limit: int, given: GivenSizes, fewest: int) -> Demand:
    """The largest micro-batch beside a sleeping engine, and the cache that sampling leaves room for, at most what the episodes
    use."""
    cache = given.cache
    if cache is None:
        sampling = sum(replace(demand, cache=0).phases["sampling"].values())
        cache = min(max(limit - sampling, demand.least_cache), demand.most_cache)
    for size in (given.tokens,) if given.tokens else _sizes(fewest):
        sized = replace(demand, tokens=size, cache=cache)
        if sum(sized.phases["training"].values()) <= limit:
            break
    return sized


def _sizes(fewest: int) -> Iterator[int]:
    """Sizes of micro-batches from the largest: powers of two, so that small changes of free memory change nothing."""
    size = MOST_TOKENS
    while size >= fewest:
        yield size
        size //= 2


def refuse(demand: Demand, limit: int, why: str) -> ConfigError:
    """An error of one line: what the job needs, its parts, and what would make it fit into ``limit`` bytes."""
    parts = ", ".join(f"{name} {format_size(size)}" for name, size in demand.parts.items())
    return ConfigError(
        "backbone.local",
        f"the job needs about {format_size(demand.total)}, but there are {format_size(limit)} ({why}): "
        f"{parts}. {_remedy(demand, limit)}",
    )


def _remedy(demand: Demand, limit: int) -> str:
    changes = list(_changes(demand, limit))
    sufficient = [text for text, changed in changes if changed(demand).total <= limit]
    if sufficient:
        return f"It would fit with {' or with '.join(sufficient)}."
    changed, texts = demand, []
    for text, change in changes:
        changed = change(changed)
        texts.append(text)
        if changed.total <= limit:
            return f"It would fit with {' and '.join(texts)} together."
    return f"Nothing makes it fit: it takes at least {format_size(changed.total)}. Use a smaller model or raise the limit."


def _changes(demand: Demand, limit: int) -> Iterator[tuple[str, Any]]:
    """Settings that would lower the demand, each with a function that changes a demand."""
    fitting = (size for size in _sizes(FEWEST_TOKENS) if replace(demand, tokens=size).total <= limit)
    tokens = next(fitting, FEWEST_TOKENS)
    if tokens < demand.tokens:
        yield f"micro_batch_tokens: {tokens}", lambda d: replace(d, tokens=tokens)
    if demand.apart:
        yield "engine: local", lambda d: replace(d, apart=False)
    if demand.cache > demand.least_cache:
        mib = (demand.least_cache >> 20) + 1
        yield f"cache_mib: {mib} ({LEAST_CACHED} tokens)", lambda d: replace(d, cache=mib << 20)
    if not demand.training.checkpointing:
        yield "gradient_checkpointing: true", lambda d: d.checkpointed(True)
    if not demand.training.eight_bits:
        yield "optimizer: adamw_8bit", lambda d: replace(d, training=replace(d.training, eight_bits=True))
    if demand.training.whole:
        size = demand.shape.adapter_parameters(16)
        yield (
            "a lora",
            lambda d: replace(d, training=replace(d.training, adapters=size, trained=size), reference=0),
        )


_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def parse_size(text: str | int) -> int:
    """Bytes of a size such as ``2GiB``, ``512 MB`` or a plain number. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]i?|)b?\s*", str(text).lower())
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is not a size; write it like 2GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(size: float) -> str:
    """Bytes as text, such as ``1.5 GiB`` or ``20 MiB``."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
