"""``ajet plan``: what fits on which GPUs, how fast it would be, and what would help."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ajet.cli.options import Backbone, Model, Sets

if TYPE_CHECKING:
    from ajet.estimate.devices import Gpus
    from ajet_advice.plan import JobPlan


def plan(
    job: Annotated[
        Path | None,
        typer.Argument(metavar="JOB.yaml", help="The job file; without one, a job with all defaults."),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="GPUS", help="GPUs such as H100 or 8xA100-80; default: those of this machine."),
    ] = None,
    model: Model = None,
    backbone: Backbone = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="full: train all weights; lora: adapters; qlora: adapters on weights of 4 bits. Default: as the job says.",
        ),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Mean tokens of an episode that are not sampled; default: 1024.", min=1
        ),
    ] = None,
    answer_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Mean sampled tokens of an episode; default: rollout.sampling.max_tokens, else 1024.",
            min=1,
        ),
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", help="Price of one GPU for an hour: also estimate what the run costs.", min=0
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    set: Sets = None,
) -> None:
    """Estimate a job's memory and speed on GPUs, which need not be in this machine. No weights are loaded, and nothing is run.

    Exit code 0: the job fits; 1: it does not; 2: the job is wrong, or there is no estimate.
    """
    given = locals()
    import json

    from ajet import ConfigError
    from ajet.interfaces.helpers import nearest
    from ajet.interfaces.progress import reporting_to
    from ajet.reports.progress import make_progress
    from ajet.runs.jobs import job_of
    from ajet_advice.plan import METHODS, PlanQuestion
    from ajet_advice.plan import plan as make_plan

    if method is not None and method not in METHODS:
        raise ConfigError(
            f"--method {method}: unknown{nearest(method, METHODS)}. Known: {', '.join(METHODS)}."
        )
    asked = PlanQuestion(
        gpus=_gpus(gpus), method=method, prompt=prompt_tokens, answer=answer_tokens, price=price
    )
    with make_progress() as progress, reporting_to(progress):
        estimate = make_plan(job_of(given), asked)
    print(json.dumps(estimate.as_dict(), indent=2) if as_json else "\n".join(page(estimate)))
    if not estimate.layout.fits:
        raise typer.Exit(1)


def page(estimate: JobPlan) -> Iterator[str]:
    """The plan as lines of text."""
    from ajet.estimate.devices import USABLE
    from ajet.utils.terminal import table
    from ajet_advice.plan import gibibytes

    sizes, layout, speed = estimate.sizes, estimate.layout, estimate.speed
    trained = (
        "all weights"
        if sizes.adapted is None
        else f"adapters of {sizes.learning / 1e6:.0f}M weights" + (" on 4 bits" if sizes.quantized else "")
    )
    yield (
        f"{estimate.model}: {sizes.shape.parameters / 1e9:.2f}B weights, {trained}, backbone {estimate.backbone}, {estimate.gpus}"
    )
    yield ""
    for phase in layout.phases:
        verdict = "fits" if phase.fits else "DOES NOT FIT"
        yield f"{phase.name}: {gibibytes(phase.total)} of {gibibytes(phase.limit)} GiB on each GPU, {verdict}"
        yield table([(name, f"{gibibytes(size):>6} GiB") for name, size in phase.parts.items()], indent="  ")
    yield ""
    yield f"{USABLE:.0%} of a GPU's memory is for the job; the rest is for CUDA and what its allocator cannot use."
    if any(0.99 * phase.limit < phase.total <= phase.limit for phase in layout.phases):
        yield "The plan is full because the engine's cache takes what the other parts leave."
    yield ""
    each = "" if layout.engines == 1 else f" of each of {layout.engines} engines"
    yield f"episodes at once: {layout.running}; the cache{each} has room for {estimate.cache_tokens:,} tokens"
    episode = f"episodes of {sizes.prompt} + {sizes.answer} tokens"
    yield f"speed, for a step of {sizes.episodes} {episode}, without the time of agents and judges:"
    yield table(
        [
            ("sampling", f"{speed.sampled} tokens/s", f"{speed.sampling_seconds} s"),
            ("training", f"{speed.trained} tokens/s", f"{speed.training_seconds} s"),
            ("step", f"{speed.tokens} sampled tokens/s", f"bottleneck: {estimate.bottleneck}"),
        ],
        indent="  ",
    )
    if estimate.run.steps:
        yield f"the run, {estimate.run.steps} steps: {estimate.run}"
    yield ""
    yield "settings that the backbone would choose:"
    yield table([(f"{key}:", value) for key, value in layout.settings.items()], indent="  ", most=64)
    for note in estimate.notes:
        yield f"note: {note}"
    if estimate.suggestions:
        yield ""
        yield "faster with:" if layout.fits else "fits with:"
        for suggestion in estimate.suggestions:
            yield f"  {suggestion.text}" + (f"  ({suggestion.times:.1f} ×)" if suggestion.times else "")
    elif not layout.fits:
        yield "no setting that was tried makes it fit: take a smaller model or a larger GPU"


def _gpus(text: str | None) -> Gpus:
    """The GPUs of ``--gpus``, else those of this machine. Raises ConfigError."""
    from ajet import ConfigError
    from ajet.estimate.devices import Gpus, reported_gpus
    from ajet_advice.known import DEVICES, named, parse_gpus

    if text is not None:
        return parse_gpus(text)
    names = reported_gpus("name")
    device = named(names[0]) if names else None
    if device is None:
        seen = f"{names[0]} is not known here" if names else "this machine has none"
        raise ConfigError(f"--gpus: {seen}. Name GPUs, such as 8xH100. Known: {', '.join(DEVICES)}.")
    return Gpus(len(names), device)
