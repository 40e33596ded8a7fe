"""``ajet plan``: what of a job fits on which GPUs, how fast it would be, and which settings would help."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet import Algorithm, Backbone, ConfigError, find_recipe, model_source
from ajet.estimate.devices import GIB, Gpus
from ajet.estimate.layout import JobSizes, Layout
from ajet.estimate.shape import ModelShape
from ajet.interfaces.progress import current_progress
from ajet.job.config import JobConfig, Layers
from ajet.job.parts import build_backbone, build_plugin
from ajet_advice.cost import Cost
from ajet_advice.known import read_shape
from ajet_advice.shapes import UnknownFamily
from ajet_advice.speed import Range, Speed, speed

MEAN_TOKENS = 1024
"""Tokens of an episode that are sampled, and that are not, where nothing says how many."""
RANK = 16
"""Rank of the adapters that are tried."""
FASTER = 1.1
"""A setting is shown if it makes a step this many times as fast."""
FEW_EPISODES = 32
"""Episodes of a step for each of several GPUs, below which the note is shown."""
ABOVE_WITH_VLLM = 1.18
"""The peak of the one job that was measured with vLLM beside the trainer, by its plan (bench/results/prove_h100_vllm.json)."""
CHECKPOINT_BYTES = 12
"""Of a weight that learns: itself and AdamW's two moments, in float32."""
DISK = 1e9, 2e9
"""Bytes that a disk of a cluster writes in a second, at the lowest and the highest."""
MUCH_SAVING = 0.05
"""Share of the time of the steps for which checkpoints are written, above which the note is shown."""
MOST_GPUS = 64
MOST_PAIRS = 4
"""Of pairs of settings with which a job fits, so many are shown."""
METHODS = ("full", "lora", "qlora")


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Settings that would help."""

    text: str
    """The settings as they are written: ``key: value``, or flags."""
    times: float | None
    """How many times as fast a step is with them; None if the job fits only with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """The estimate of a job on GPUs."""

    model: str
    backbone: str
    gpus: Gpus
    sizes: JobSizes
    layout: Layout
    speed: Speed
    run: Cost
    """Of the job's `train.steps`, without agents and judges."""
    suggestions: tuple[Suggestion, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def cache_tokens(self) -> int:
        """Tokens for which an engine's cache has room."""
        return self.layout.cache // self.sizes.shape.cached(1, self.layout.number)

    @property
    def bottleneck(self) -> str:
        """What limits the job: memory if it does not fit, else sampling or training."""
        return self.speed.bottleneck if self.layout.fits else "memory"

    def as_dict(self) -> dict[str, Any]:
        """The plan as plain data; sizes are in bytes, speeds in tokens a second."""
        layout, rates = self.layout, self.speed
        ranges = ("sampled", "trained", "sampling_seconds", "training_seconds", "tokens")
        return {
            "model": self.model,
            "parameters": self.sizes.shape.parameters,
            "backbone": self.backbone,
            "gpus": {"name": self.gpus.device.name, "count": self.gpus.count, "used": layout.gpus},
            "fits": layout.fits,
            "bottleneck": self.bottleneck,
            "memory": [
                {"phase": p.name, "parts": dict(p.parts), "total": p.total, "limit": p.limit, "fits": p.fits}
                for p in layout.phases
            ],
            "concurrency": layout.running,
            "cache_tokens": self.cache_tokens,
            "speed": {name: asdict(getattr(rates, name)) for name in ranges} | {"at_once": rates.at_once},
            "run": self.run.as_dict(),
            "settings": dict(layout.settings),
            "suggestions": [asdict(suggestion) for suggestion in self.suggestions],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """What a plan is asked for besides the job."""

    gpus: Gpus
    method: str | None = None
    """One of `METHODS`; None: as the job says."""
    prompt: int | None = None
    answer: int | None = None
    price: float | None = None
    """Of one GPU for an hour."""


def plan(layers: Layers, asked: PlanQuestion) -> JobPlan:
    """The estimate of a job, with the settings that would help. Raises ConfigError if the job is wrong, or its model or backbone
    has no estimate."""
    layers = _with_method(layers, asked.method)
    estimate = _estimate(layers, asked)
    notes = tuple(_notes(estimate, asked, layers.job().train.save_every))
    suggestions = (
        _faster(estimate, layers, asked) if estimate.layout.fits else _fitting(estimate, layers, asked)
    )
    return JobPlan(
        model=estimate.model,
        backbone=estimate.backbone,
        gpus=estimate.gpus,
        sizes=estimate.sizes,
        layout=estimate.layout,
        speed=estimate.speed,
        run=estimate.run,
        suggestions=tuple(suggestions),
        notes=notes,
    )


def _estimate(layers: Layers, asked: PlanQuestion) -> JobPlan:
    config, backbone = layers.job(), build_backbone(layers)
    sizes = _sizes(config, backbone, layers, asked)
    layout = backbone.layout(sizes, asked.gpus)
    rates = speed(sizes, layout, asked.gpus.device)
    low, high = (
        getattr(rates.sampling_seconds, end) + getattr(rates.training_seconds, end) for end in ("low", "high")
    )
    return JobPlan(
        model=config.model,
        backbone=backbone.name,
        gpus=asked.gpus,
        sizes=sizes,
        layout=layout,
        speed=rates,
        run=Cost.of(config.train.steps, low, high, asked.gpus.count, asked.price),
    )


def _sizes(config: JobConfig, backbone: Backbone, layers: Layers, asked: PlanQuestion) -> JobSizes:
    seed = config.run.seed
    shape = _shape(config.model, backbone, seed)
    loras = {name: target.lora for name, target in config.targets.items() if target.lora}
    context = min(config.rollout.context_length or shape.context, shape.context)
    answer = asked.answer or config.rollout.sampling.max_tokens or MEAN_TOKENS
    prompt = asked.prompt or MEAN_TOKENS
    if asked.answer and asked.prompt and answer + prompt > context:
        raise ConfigError(
            f"--prompt-tokens and --answer-tokens: {answer + prompt} tokens are more than the context of {context}. Lower them."
        )
    answer = min(answer, context - 1)
    algorithm = build_plugin(layers, Algorithm, config.train.algorithm, "train.algorithm")
    return JobSizes(
        shape=shape,
        adapters={name: shape.adapter_parameters(lora.rank, lora.modules) for name, lora in loras.items()},
        trained=config.train.targets or tuple(loras),
        quantized=asked.method == "qlora" or getattr(backbone, "quantize", None) is not None,
        reference=_shape(config.train.reference, backbone, seed) if config.train.reference else None,
        keeps_first=config.train.reference is None
        and (config.train.kl > 0 or "reference" in algorithm.needs),
        entropy=config.train.entropy > 0,
        asynchronous=config.train.asynchronous,
        episodes=config.train.batch_size * config.rollout.group_size,
        concurrency=config.rollout.concurrency,
        concurrency_set=layers.source_of("rollout.concurrency") != "default",
        context=context,
        prompt=min(prompt, context - answer),
        answer=answer,
    )


def _shape(model: str, backbone: Backbone, seed: int) -> ModelShape:
    """The sizes of a model; that of a recipe is built if it is not there yet."""
    if find_recipe(model):
        model = model_source(model, seed, current_progress())
    try:
        return read_shape(model)
    except UnknownFamily:
        if (shape := backbone.shape(model)) is None:
            raise
        return shape


def _with_method(layers: Layers, method: str | None) -> Layers:
    """The job with all weights trained, or with an adapter for each target that lacks one."""
    if method is None:
        return layers
    targets = layers.job().targets
    if method == "full":
        return _with(layers, {f"targets.{name}.lora": None for name in targets})
    missing = [name for name, target in targets.items() if not target.lora and not target.frozen_model]
    changes: dict[str, object] = {
        f"targets.{name}.lora.rank": RANK for name in (missing if targets else ["policy"])
    }
    return _with(layers, changes | (_in_four_bits(build_backbone(layers)) if method == "qlora" else {}))


def _in_four_bits(backbone: Backbone) -> dict[str, object]:
    """The key with which a backbone stores weights below adapters in 4 bits; none if it has none."""
    return {f"backbone.{backbone.name}.quantize": "4bit"} if "quantize" in type(backbone).model_fields else {}


def _with(layers: Layers, values: Mapping[str, object]) -> Layers:
    changed = Layers(deepcopy(layers.values), dict(layers.sources), dict(layers.bases), layers.objects)
    for key, value in values.items():
        changed.set(key, value, "ajet plan", Path.cwd())
    return changed


def _notes(estimate: JobPlan, asked: PlanQuestion, save_every: int) -> Iterator[str]:
    if estimate.layout.gpus < estimate.gpus.count:
        yield (
            f"the backbone {estimate.backbone} uses {estimate.layout.gpus} of the {estimate.gpus.count} GPUs; --backbone verl uses all"
        )
    peak, memory = estimate.layout.tightest.total * ABOVE_WITH_VLLM, estimate.gpus.device.memory
    if estimate.layout.settings.get("backbone.local.engine") == "vllm" and peak > memory:
        yield (
            f"the one job that was measured with vLLM took {ABOVE_WITH_VLLM:.0%} of its plan, which would be {gibibytes(int(peak))} of "
            f"{gibibytes(memory)} GiB: leave room with backbone.local.optimizer: adamw_8bit, or a smaller micro_batch_tokens"
        )
    if (each := estimate.sizes.episodes // estimate.layout.gpus) < FEW_EPISODES and estimate.layout.gpus > 1:
        yield f"a step has {each} episodes for each GPU, which are too few to keep it busy: raise train.batch_size"
    sizes, rates = estimate.sizes, estimate.speed
    size = CHECKPOINT_BYTES * (sizes.learning if sizes.adapters else sizes.shape.parameters)
    saving = Range(size / DISK[1], size / DISK[0])
    steps = save_every * (rates.sampling_seconds.middle + rates.training_seconds.middle)
    if estimate.backbone == "verl" and saving.middle > MUCH_SAVING * steps:
        yield (
            f"verl writes {gibibytes(size)} GiB every {save_every} steps while nothing else runs: {saving} s at 1 to 2 GB/s, beside "
            f"about {steps:.0f} s for these steps; raise train.save_every"
        )
    if (
        estimate.speed.at_once
        < min(estimate.layout.running, estimate.sizes.episodes) // estimate.layout.engines
    ):
        yield (
            f"the cache has room for {estimate.speed.at_once} requests at once on each engine, of {estimate.layout.running} that run"
        )


# --------------------------------------------------------------------------- settings that would help


def _changes(estimate: JobPlan, layers: Layers) -> Iterator[Mapping[str, object]]:
    """Keys of the job, with values, that may help."""
    targets = layers.job().targets
    if not estimate.sizes.adapters:
        yield {f"targets.{name}.lora.rank": RANK for name in targets or ("policy",)}
    elif not estimate.sizes.quantized and (fewer := _in_four_bits(build_backbone(layers))):
        yield fewer
    if estimate.sizes.asynchronous:
        yield {"train.asynchronous": False}
    context = 1 << (2 * (estimate.sizes.prompt + estimate.sizes.answer) - 1).bit_length()
    if context < estimate.sizes.context:
        yield {"rollout.context_length": context}
    if estimate.layout.running < estimate.sizes.episodes:
        yield {"rollout.concurrency": estimate.sizes.episodes}
    yield from build_backbone(layers).alternatives()


def _tried(
    changes: Iterable[Mapping[str, object]], layers: Layers, asked: PlanQuestion
) -> Iterator[tuple[Mapping[str, object], JobPlan]]:
    """Each change with which the job fits, with its plan."""
    for change in changes:
        try:
            tried = _estimate(_with(layers, change), asked)
        except ConfigError:  # these settings exclude each other
            continue
        if tried.layout.fits:
            yield change, tried


def _faster(estimate: JobPlan, layers: Layers, asked: PlanQuestion) -> list[Suggestion]:
    """Single changes with which a step is faster, the best first. Of changes that lead to the same speed, the first is kept."""
    times: dict[float, Mapping[str, object]] = {}
    for change, tried in _tried(_changes(estimate, layers), layers, asked):
        factor = round(tried.speed.tokens.middle / estimate.speed.tokens.middle, 1)
        if factor >= FASTER:
            times.setdefault(factor, change)
    return [Suggestion(_written(times[factor]), factor) for factor in sorted(times, reverse=True)]


def _fitting(estimate: JobPlan, layers: Layers, asked: PlanQuestion) -> list[Suggestion]:
    """Single changes with which the job fits, without any two of them, and more GPUs."""
    singles = list(_changes(estimate, layers))
    pairs = [{**one, **other} for one, other in itertools.combinations(singles, 2)]
    fitting = [change for change, _ in _tried(singles, layers, asked)]
    if not fitting:
        fitting = [change for change, _ in itertools.islice(_tried(pairs, layers, asked), MOST_PAIRS)]
    more = _more_gpus(layers, asked)
    return [Suggestion(text, None) for text in [*map(_written, fitting), *([more] if more else [])]]


def _more_gpus(layers: Layers, asked: PlanQuestion) -> str:
    """The flags with which the job fits on more GPUs of the kind, with verl; "" if it does not, or the plugin is not installed."""
    count = 2
    while count <= MOST_GPUS:
        if count > asked.gpus.count:
            gpus = Gpus(count, asked.gpus.device)
            try:
                more = _estimate(_with(layers, {"backbone": "verl"}), _at(asked, gpus))
            except ConfigError:
                return ""
            if more.layout.fits:
                return f"--backbone verl --gpus {count}x{gpus.device.name}"
        count *= 2
    return ""


def _at(asked: PlanQuestion, gpus: Gpus) -> PlanQuestion:
    return replace(asked, gpus=gpus)


def _written(change: Mapping[str, object]) -> str:
    values = {True: "true", False: "false", None: "null"}
    return ", ".join(f"{key}: {values.get(value, value)}" for key, value in change.items())  # type: ignore[call-overload]


def gibibytes(size: int) -> str:
    """Bytes in GiB, as the tables of plans write them."""
    return f"{size / GIB:.1f}"
