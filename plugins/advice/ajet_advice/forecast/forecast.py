"""Runs a forecast: the episodes of `ajet check`, what else is asked of them, and what all of it says of training."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ajet import Engine, Job, Trainer
from ajet.estimate.devices import Gpus
from ajet.rollout.episode import Episode
from ajet.rollout.groups import judged_groups
from ajet.runs.check import Report, examined
from ajet.runs.runtime import Runtime
from ajet.utils import asyncrun
from ajet.utils.statistics import Interval
from ajet_advice.cost import Cost
from ajet_advice.forecast.attack import Hole, attack
from ajet_advice.forecast.causes import LEAST_SIGNAL, causes_of, suggestions_of
from ajet_advice.forecast.figures import ForecastFigures, mean_reward, passed, passes_by_k, signal_by_size
from ajet_advice.forecast.noise import Gradient, JudgeNoise, gradient_of, judged_again
from ajet_advice.forecast.steps import Probe, Rate, steps_to
from ajet_advice.plan import PlanQuestion, plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastRequest:
    """What a forecast is to say, and what it may use."""

    episodes: int = 64
    """In all, of groups of the job's size, but of at least 4."""
    seconds: float | None = None
    """For running them."""
    target: float = 0.8
    """The pass rate to which the steps are estimated."""
    attack: bool = False
    """Whether the judge is attacked."""
    gpus: Gpus | None = None
    """On which a step is estimated, too."""
    price: float | None = None
    """Of one GPU for an hour."""


def forecast(
    job: Job,
    engine: Engine,
    asked: ForecastRequest,
    *,
    trainer: Trainer | None = None,
    probe: Probe | None = None,
) -> ForecastFigures:
    """Run a few episodes and say what they mean for training. ``trainer``, whose engine is ``engine``, measures gradients and is
    left with useless optimizer state. ``probe`` are steps that were trained before. Raises AjetError."""
    return asyncrun.run(_forecast(job, engine, asked, trainer, probe), job.progress.say)


async def _forecast(
    job: Job, engine: Engine, asked: ForecastRequest, trainer: Trainer | None, probe: Probe | None
) -> ForecastFigures:
    members = max(job.config.rollout.group_size, 4)
    judge: JudgeNoise | None = None
    gradient: Gradient | None = None
    holes: Sequence[Hole] | None = None

    async def also(runtime: Runtime, episodes: Sequence[Episode]) -> None:
        nonlocal judge, gradient, holes
        judge = await judged_again(runtime, episodes)
        if trainer is not None:
            gradient = await asyncio.to_thread(gradient_of, job, trainer, runtime.teacher(), episodes)
        if asked.attack:
            holes = await attack(job, runtime.judge, episodes)

    report = await examined(
        job,
        engine,
        tasks=max(asked.episodes // members, 2),
        group_size=members,
        name="forecast",
        seconds=asked.seconds,
        also=also,
    )
    groups, size = list(judged_groups(report.episodes).values()), job.config.rollout.group_size
    rewards = [[e.reward for e in group] for group in groups]
    passes = [[p for e in group if (p := passed(e)) is not None] for group in groups]
    if any(len(p) < len(r) for p, r in zip(passes, rewards, strict=True)):
        passes = []
    on_gpus = planned_step(job, report, asked.gpus) if asked.gpus else None
    share = job.config.train.batch_size * size / max(len(report.episodes), 1)
    forecast = ForecastFigures(
        report=report,
        tasks=len(groups),
        group_size=size,
        signal=signal_by_size(rewards, passes, size),
        pass_at=passes_by_k(passes),
        reward=mean_reward(rewards),
        always=sum(all(group) for group in passes),
        never=sum(not any(group) for group in passes),
        judge=judge,
        gradient=gradient,
        step_tokens=share * _sampled(report),
        step_seconds=(here := probe.seconds if probe else share * report.seconds),
        gpus=on_gpus,
        run=Cost.of(
            job.config.train.steps,
            on_gpus["low"] if on_gpus else here,
            on_gpus["high"] if on_gpus else here,
            asked.gpus.count if asked.gpus else 1,
            asked.price,
        ),
        probe=probe,
        target=asked.target,
        steps=None,
        holes=holes,
        causes=(),
        suggestions=(),
    )
    has_template = bool(getattr(engine.tokenizer, "chat_template", None))
    forecast = replace(forecast, causes=tuple(causes_of(job, forecast, has_template)))
    return replace(forecast, suggestions=tuple(suggestions_of(job, forecast)), steps=_steps(forecast))


def _steps(forecast: ForecastFigures) -> Interval | None:
    """Steps until the pass rate, or a reward from 0 to 1, is at the target; None if nothing suggests that the job learns."""
    start, share = forecast.pass_at.get(1) or forecast.reward, forecast.signal.get(forecast.group_size)
    if not start or not share or share[0] < LEAST_SIGNAL or forecast.causes:
        return None
    if not 0 <= start[0] < forecast.target or not 0 <= start[1] <= start[2] <= 1:
        return None
    compared = forecast.probe.compared if forecast.probe else ()
    return steps_to(forecast.target, [*_rates(start[0], forecast)], compared)


def _rates(start: float, forecast: ForecastFigures) -> Iterator[Rate]:
    yield Rate(0, start, forecast.tasks)
    if forecast.probe:
        for step, rate in enumerate(forecast.probe.rates):  # the first step samples before any update
            yield Rate(step, rate, forecast.probe.groups)


def _sampled(report: Report) -> int:
    return sum(len(c.generation.token_ids) for e in report.episodes for c in e.record.calls)


def planned_step(job: Job, report: Report, gpus: Gpus) -> dict[str, float]:
    """Seconds of a step on GPUs by `ajet plan`, with the lengths that were measured: middle, low, high. Raises ConfigError."""
    episodes, sampled = max(len(report.episodes), 1), _sampled(report)
    asked = PlanQuestion(
        gpus=gpus,
        prompt=max((report.merging.timeline_tokens - sampled) // episodes, 1),
        answer=max(sampled // episodes, 1),
    )
    speed = plan(job.layers, asked).speed
    parts = (speed.sampling_seconds, speed.training_seconds)
    return {name: sum(getattr(part, name) for part in parts) for name in ("middle", "low", "high")}
