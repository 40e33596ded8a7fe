"""A roofline of a training step, in which the GPUs first sample and then train.

Prompts and training multiply large matrices, so the GPU's operations limit them. Sampling reads all weights and the keys and
values of all running requests for each new token of each of them, so the memory's bandwidth limits it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ajet.estimate.devices import Device
from ajet.estimate.layout import JobSizes, Layout
from ajet.estimate.shape import QUANTIZED

OPERATIONS_USED = (0.25, 0.55)
"""Lowest and highest share of a GPU's operations that training and long prompts usually reach."""
BANDWIDTH_USED = (0.5, 0.8)
"""Lowest and highest share of a memory's bandwidth that sampling usually reaches."""


@dataclass(frozen=True, slots=True)
class Range:
    """An estimate from its lowest to its highest value."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The mean of both."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        return f"{_short(self.low)}–{_short(self.high)}"


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a training step is. Seconds of agents, tools and judges are not in it."""

    sampled: Range
    """Tokens that all engines sample in a second."""
    trained: Range
    """Tokens that all GPUs train in a second."""
    sampling_seconds: Range
    training_seconds: Range
    tokens: Range
    """Sampled tokens of a step, divided by its seconds."""
    at_once: int
    """Requests that one engine samples together."""

    @property
    def bottleneck(self) -> str:
        """The slower part of a step."""
        return "sampling" if self.sampling_seconds.middle >= self.training_seconds.middle else "training"


def speed(sizes: JobSizes, layout: Layout, device: Device) -> Speed:
    """The speed of a job in a layout on GPUs of one kind."""
    at_once = requests_at_once(sizes, layout)
    extremes = [_step(sizes, layout, device, at_once, bound) for bound in (0, 1)]
    sampled = sizes.episodes * sizes.answer
    trained = sizes.episodes * (sizes.answer + sizes.prompt)
    (slow_sampling, slow_training), (fast_sampling, fast_training) = extremes
    return Speed(
        sampled=Range(sampled / slow_sampling, sampled / fast_sampling),
        trained=Range(trained / slow_training, trained / fast_training),
        sampling_seconds=Range(fast_sampling, slow_sampling),
        training_seconds=Range(fast_training, slow_training),
        tokens=Range(sampled / (slow_sampling + slow_training), sampled / (fast_sampling + fast_training)),
        at_once=at_once,
    )


def requests_at_once(sizes: JobSizes, layout: Layout) -> int:
    """How many requests an engine samples together, at least one: as many as run, have room in its cache, and it accepts."""
    held = sizes.shape.held(sizes.prompt + sizes.answer, layout.number)
    running = -(-min(layout.running, sizes.episodes) // layout.engines)
    return max(1, min(running, layout.cache // held, layout.batch))


def sampling_rate(sizes: JobSizes, layout: Layout, device: Device, at_once: int, bound: int) -> float:
    """Tokens that one engine samples in a second; ``bound`` 0 is the lowest estimate and 1 the highest."""
    shape, gpus = sizes.shape, layout.engine_gpus
    held = shape.held(sizes.prompt + sizes.answer // 2, layout.number)
    read = (_read_weights(sizes, layout.number) + at_once * held) / (
        gpus * device.bandwidth * BANDWIDTH_USED[bound]
    )
    multiplied = at_once * 2 * shape.multiplied / (gpus * device.flops * OPERATIONS_USED[bound])
    layers, tokens = (times[1 - bound] for times in (layout.pass_seconds, layout.token_seconds))
    return at_once / (max(read, multiplied) + shape.layers * layers + at_once * tokens)


def _read_weights(sizes: JobSizes, number: int) -> float:
    """Bytes that a pass moves because of weights. Those of 4 bits are read, written with ``number`` bytes, and read again."""
    shape = sizes.shape
    if not sizes.quantized:
        return shape.multiplied * number
    linear = shape.linear_parameters
    return linear * (QUANTIZED + 2 * number) + (shape.multiplied - linear) * number


def training_operations(sizes: JobSizes, *, checkpointing: bool) -> float:
    """Floating-point operations of training one token: two for each weight in the forward pass, two for the gradients of its
    inputs and, if the model's own weights are trained, two for theirs; two more if the forward pass is computed twice."""
    shape = sizes.shape
    passes = (2 if sizes.adapters else 3) + checkpointing
    scored = (sizes.reference or shape).multiplied if sizes.keeps_first or sizes.reference else 0
    return passes * forward_operations(sizes) + 2 * scored


def forward_operations(sizes: JobSizes) -> float:
    """Floating-point operations of a token's forward pass, with attention to half of an episode on average."""
    shape = sizes.shape
    return 2 * shape.multiplied + 4 * shape.layers * shape.queries * (sizes.prompt + sizes.answer) / 2


def _step(sizes: JobSizes, layout: Layout, device: Device, at_once: int, bound: int) -> tuple[float, float]:
    """Seconds of sampling and of training."""
    operations = layout.gpus * device.flops * OPERATIONS_USED[bound]
    prompts = sizes.episodes * sizes.prompt * forward_operations(sizes)
    rate = layout.engines * sampling_rate(sizes, layout, device, at_once, bound)
    trained = sizes.episodes * (sizes.prompt + sizes.answer)
    each = training_operations(sizes, checkpointing=layout.checkpointing)
    engines = layout.engines * layout.engine_gpus * device.flops * OPERATIONS_USED[bound]
    return prompts / engines + sizes.episodes * sizes.answer / rate, trained * each / operations


def _short(value: float) -> str:
    """A number with two significant digits."""
    if value >= 100:
        digits = len(str(int(value))) - 2
        return f"{round(value, -digits):,.0f}"
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"
