"""`ajet forecast`: from a few dozen episodes, whether a job will learn, what would stop it, and what it would cost.

Episodes are those of `ajet check`. Tasks are the independent units of all intervals, because episodes of one task are alike.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ajet.capture.context import passthrough
from ajet.estimate.devices import Gpus
from ajet.estimate.shape import read_shape
from ajet.interfaces.backbone import Trainer
from ajet.interfaces.engine import Engine
from ajet.interfaces.judge import GroupJudge
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.models import model_source
from ajet.learning.batch import Selection, build_batch
from ajet.rollout.episode import Episode
from ajet.rollout.groups import score
from ajet.runs.attack import Hole, attack
from ajet.runs.check import Report, examined, warnings_of
from ajet.runs.plan import Question, plan
from ajet.runs.runtime import Runtime
from ajet.types import ConfigError, JudgeOutput
from ajet.utils.asyncrun import run
from ajet.utils.pass_at_k import Interval, fitted, foreseen_signal, pass_at_k, signal, wilson
from ajet.utils.threads import called

LEAST_SIGNAL = 0.1
"""Share of groups with different rewards below which hardly anything is learned."""
ENOUGH_SIGNAL = 0.5
MUCH_NOISE = 0.5
"""Share of the differences within groups that the judge's noise may explain."""
FAILED = 0.2
"""Share of failed episodes that is named as a cause."""
CUT = 0.3
"""Share of episodes with a cut answer that is named as a cause, if they get hardly any reward."""
GROWTH, GROWTH_FACTOR = 0.08, 3.2
"""How much the log-odds of success rise in a training step: the geometric mean of the 28 recorded runs of the examples
that learn (`learned.json`), and the factor in both directions within which 9 of 10 of them are."""
MOST_REJUDGED = 16


@dataclass(frozen=True, slots=True)
class JudgeNoise:
    """What the judge said of the same outputs, asked twice more."""

    judged: int
    changed: int
    """Outputs that got two different rewards."""
    share: float
    """Share of the variance of rewards within groups that is the judge's: half the mean squared change, over the variance."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """The noise of the gradient: McCandlish et al., "An Empirical Model of Large-Batch Training" (arXiv:1812.06162, app. A.1),
    from the norms of each group's gradient and of all groups' together."""

    groups: int
    noise_scale: float
    """Groups in a step with which the gradient's signal equals its noise; infinite if no common direction was measured."""
    signal_to_noise: float
    """Of a step of the job's size: the square root of its groups over ``noise_scale``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a few episodes say of a run. Intervals are (estimate, low, high) and hold in 95 % of cases."""

    report: Report
    tasks: int
    group_size: int
    """The job's."""
    signal: Mapping[int, Interval]
    """By group size, the share of groups with different rewards."""
    pass_at: Mapping[int, Interval]
    """pass@k by k; empty if the judge says nothing of success and rewards are not only 0 and 1."""
    reward: Interval | None
    """The mean; None if none was judged. Without an interval for rewards that are not from 0 to 1, (mean, min, max)."""
    always: int
    """Tasks whose episodes all passed."""
    never: int
    judge: JudgeNoise | None
    gradient: Gradient | None
    step_tokens: float
    """Sampled tokens of a training step."""
    step_seconds: float
    """Seconds of its rollout here, with this machine's engine and load."""
    target: float
    steps: Interval | None
    """Training steps to the target; None without an estimate."""
    holes: Sequence[Hole] | None
    """How the judge can be fooled; None if it was not attacked."""
    causes: Sequence[tuple[str, str, str]]
    """(name, what stands in the way, what helps), worst first."""
    suggestions: Sequence[tuple[str, str]]
    """(setting, reason)"""

    def as_dict(self) -> dict[str, Any]:
        """The forecast as plain data."""
        report = self.report
        calls = [c for e in report.episodes for c in e.record.calls]
        return {
            "run_dir": str(report.run_dir),
            "episodes": len(report.episodes),
            "failed": sum(e.failure is not None for e in report.episodes),
            "tasks": self.tasks,
            "group_size": self.group_size,
            "reward": self.reward,
            "signal": {str(size): found for size, found in self.signal.items()},
            "pass_at": {str(k): found for k, found in self.pass_at.items()},
            "tasks_always_solved": self.always,
            "tasks_never_solved": self.never,
            "judge": asdict(self.judge) if self.judge else None,
            "gradient": {k: v if math.isfinite(v) else None for k, v in asdict(self.gradient).items()}
            if self.gradient
            else None,
            "answers": len(calls),
            "answers_cut": report.cut,
            "answer_tokens": statistics.fmean(len(c.generation.token_ids) for c in calls) if calls else None,
            "longest_call": report.longest,
            "context_length": report.context_length,
            "step_tokens": self.step_tokens,
            "step_seconds": self.step_seconds,
            "target": self.target,
            "steps": self.steps,
            "holes": None if self.holes is None else [asdict(hole) for hole in self.holes],
            "causes": [{"name": n, "what": what, "remedy": remedy} for n, what, remedy in self.causes],
            "suggestions": [{"setting": setting, "reason": why} for setting, why in self.suggestions],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a forecast may use. ``episodes`` in all, of groups of the job's size, but of at least 4; ``seconds`` for running them."""

    episodes: int = 64
    seconds: float | None = None


def forecast(
    job: Job,
    engine: Engine,
    *,
    budget: Budget,
    target: float,
    trainer: Trainer | None = None,
    attacks: bool = False,
) -> Forecast:
    """Run a few episodes and say what they mean for training. ``trainer``, whose engine is ``engine``, measures gradients and is
    left with useless optimizer state. With ``attacks`` the judge is attacked. Raises AjetError."""
    return run(_forecast(job, engine, budget, target, trainer, attacks), job.progress.say)


async def _forecast(
    job: Job, engine: Engine, budget: Budget, target: float, trainer: Trainer | None, attacks: bool
) -> Forecast:
    members = max(job.config.rollout.group_size, 4)
    judge: JudgeNoise | None = None
    gradient: Gradient | None = None
    holes: Sequence[Hole] | None = None

    async def also(runtime: Runtime, episodes: Sequence[Episode]) -> None:
        nonlocal judge, gradient, holes
        judge = await _judged_again(runtime, episodes)
        if trainer is not None:
            gradient = await asyncio.to_thread(_gradient, job, trainer, episodes)
        if attacks:
            holes = await attack(job, runtime.judge, episodes)

    report = await examined(
        job,
        engine,
        tasks=max(budget.episodes // members, 2),
        group_size=members,
        name="forecast",
        seconds=budget.seconds,
        also=also,
    )
    return foresee(
        job,
        report,
        target=target,
        judge=judge,
        gradient=gradient,
        holes=holes,
        has_template=bool(getattr(engine.tokenizer, "chat_template", None)),
    )


def planned_step(layers: Layers, found: Forecast, gpus: Gpus) -> dict[str, float]:
    """Seconds of a step on GPUs by `ajet plan`, with the lengths that were measured: middle, low, high. Raises ConfigError."""
    report = found.report
    episodes = max(len(report.episodes), 1)
    sampled = sum(len(c.generation.token_ids) for e in report.episodes for c in e.record.calls)
    asked = Question(
        gpus=gpus,
        prompt=max((report.merging.timeline_tokens - sampled) // episodes, 1),
        answer=max(sampled // episodes, 1),
    )
    speed = plan(layers, asked).speed
    parts = (speed.sampling_seconds, speed.training_seconds)
    return {name: sum(getattr(part, name) for part in parts) for name in ("middle", "low", "high")}


def foresee(
    job: Job,
    report: Report,
    *,
    target: float,
    judge: JudgeNoise | None = None,
    gradient: Gradient | None = None,
    holes: Sequence[Hole] | None = None,
    has_template: bool = True,
) -> Forecast:
    """What episodes that have ended say of training. ``has_template``: whether the model's tokenizer has a chat template."""
    groups, size = _groups(report.episodes), job.config.rollout.group_size
    rewards = [[e.reward for e in group] for group in groups]
    passes = [[p for e in group if (p := passed(e)) is not None] for group in groups]
    if any(len(p) < len(r) for p, r in zip(passes, rewards, strict=True)):
        passes = []
    every = [r for group in rewards for r in group]
    share = job.config.train.batch_size * size / max(len(report.episodes), 1)
    found = Forecast(
        report=report,
        tasks=len(groups),
        group_size=size,
        signal=_signal(rewards, passes, size),
        pass_at=_pass_at(passes),
        reward=_reward(rewards),
        always=sum(all(group) for group in passes),
        never=sum(not any(group) for group in passes),
        judge=judge,
        gradient=gradient,
        step_tokens=share * sum(len(c.generation.token_ids) for e in report.episodes for c in e.record.calls),
        step_seconds=share * report.seconds,
        target=target,
        steps=None,
        holes=holes,
        causes=(),
        suggestions=(),
    )
    causes = tuple(_causes(job, found, every, has_template))
    found = replace(found, causes=causes, suggestions=tuple(_suggestions(job, found)))
    return replace(found, steps=_steps(found))


def _groups(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """The judged episodes, by task."""
    groups: dict[int, list[Episode]] = {}
    for episode in episodes:
        if episode.failure is None:
            groups.setdefault(episode.plan.group, []).append(episode)
    return [groups[number] for number in sorted(groups)]


def passed(episode: Episode) -> bool | None:
    """Whether an episode has passed, by the judge's word or by a reward of 0 or 1; None if neither says so."""
    if episode.is_success is not None:
        return episode.is_success
    return bool(episode.reward) if episode.reward in (0, 1) else None


def _signal(
    rewards: Sequence[Sequence[float]], passes: Sequence[Sequence[bool]], size: int
) -> dict[int, Interval]:
    """The share of groups with different rewards, by size: measured up to the groups that were run, above them foreseen."""
    found = {}
    most = max(map(len, rewards), default=0)
    beta = fitted([sum(p) for p in passes if len(p) == most], most) if passes and most > 1 else None
    binary = all(reward in (0, 1) for group in rewards for reward in group)
    for wanted in sorted({2, 4, 8, size, 2 * size}):
        able = [group for group in rewards if len(group) >= wanted > 1]
        if able and len(able) >= len(rewards) / 2:
            found[wanted] = wilson(statistics.fmean(signal(group, wanted) for group in able), len(able))
        elif wanted > most and beta and binary:
            least = max((share[0] for share in found.values()), default=0.0)  # more episodes differ no less
            found[wanted] = wilson(max(foreseen_signal(beta, wanted), least), len(rewards))
    return found


def _pass_at(passes: Sequence[Sequence[bool]]) -> dict[int, Interval]:
    found = {}
    for k in (1, 2, 4, 8, 16, 32):
        able = [group for group in passes if len(group) >= k]
        if able and len(able) >= len(passes) / 2:
            found[k] = wilson(statistics.fmean(pass_at_k(len(g), sum(g), k) for g in able), len(able))
    return found


def _reward(rewards: Sequence[Sequence[float]]) -> Interval | None:
    every = [r for group in rewards for r in group]
    if not every:
        return None
    mean = statistics.fmean(statistics.fmean(group) for group in rewards)
    if min(every) >= 0 and max(every) <= 1:
        return wilson(mean, len(rewards))
    return mean, min(every), max(every)


def _steps(found: Forecast) -> Interval | None:
    """Steps until the pass rate, or a reward from 0 to 1, is at the target, if its log-odds rise as in the examples."""
    start = found.pass_at.get(1) or found.reward
    share = found.signal.get(found.group_size)
    if not start or not share or share[0] < LEAST_SIGNAL or found.causes:
        return None
    if not 0 <= start[0] < found.target or not 0 <= start[1] <= start[2] <= 1:
        return None
    rise = _logit(found.target) - _logit(start[0])
    middle = rise / GROWTH
    return middle, middle / GROWTH_FACTOR, middle * GROWTH_FACTOR


def _logit(share: float) -> float:
    bounded = min(max(share, 0.02), 0.98)  # as in the recorded curves: beyond, a few episodes decide
    return math.log(bounded / (1 - bounded))


# --------------------------------------------------------------------------- noise


async def _judged_again(runtime: Runtime, episodes: Sequence[Episode]) -> JudgeNoise | None:
    """Judge some of the outputs twice more, as what the first verdict was based on, such as files of the episode, may be gone;
    None if the judge cannot."""
    groups = _groups(episodes)
    most = max(MOST_REJUDGED // max(map(len, groups), default=1), 1)
    changes: list[float] = []
    spread = [statistics.variance(e.reward for e in group) for group in groups if len(group) > 1]
    for group in groups[:most]:
        try:
            with passthrough():
                one, two = [await _verdicts(runtime, group) for _ in range(2)]
            changes += [a.reward - b.reward for a, b in zip(one, two, strict=True)]
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            runtime.job.progress.say(f"the judge could not judge an output again: {text}")
            return None
    within = statistics.fmean(spread) if spread else 0.0
    if not changes:
        return None
    own = statistics.fmean(change * change for change in changes) / 2
    changed = sum(abs(change) > 1e-9 for change in changes)
    return JudgeNoise(len(changes), changed, min(own / within, 1.0) if within else float(own > 0))


async def _verdicts(runtime: Runtime, group: Sequence[Episode]) -> list[JudgeOutput]:
    judge, name = runtime.judge, f"the judge of group {group[0].plan.group}, again"
    if isinstance(judge, GroupJudge):
        found = await score(judge, group)
        return [v for v in found if isinstance(v, JudgeOutput)]
    views = [e.view() for e in group]
    return [
        await called(judge.judge, e.plan.task, v.output, v, name=name)
        for e, v in zip(group, views, strict=True)
    ]


def _gradient(job: Job, trainer: Trainer, episodes: Sequence[Episode]) -> Gradient | None:
    """The gradient's noise, by updates with a learning rate of 0, which change no weight."""
    groups = [group for group in _groups(episodes) if len(group) > 1]
    if len(groups) < 2:
        return None

    select = Selection(job.filters, job.config.train.max_timelines, "forecast")

    def squared(some: Sequence[Episode]) -> float:
        batch = build_batch(
            some, job.learning, mini_batches=1, learning_rate=0.0, seed="forecast", selection=select
        )
        return trainer.update(batch.batch).get("grad_norm", 0.0) ** 2 if batch else 0.0

    small = statistics.fmean(map(squared, groups))
    big = squared([e for group in groups for e in group])
    return noise_of(small, big, len(groups), job.config.train.batch_size)


def noise_of(small: float, big: float, groups: int, batch_size: int) -> Gradient | None:
    """From the mean squared norm of the gradients of single groups, and that of all ``groups`` together; None without any
    gradient."""
    if small <= 0:
        return None
    squared = (groups * big - small) / (groups - 1)
    noise = (small - big) / (1 - 1 / groups)
    scale = max(noise, 0.0) / squared if squared > 0 else math.inf
    return Gradient(groups, scale, math.sqrt(batch_size / scale) if scale else math.inf)


# --------------------------------------------------------------------------- causes and suggestions


def _causes(
    job: Job, found: Forecast, rewards: Sequence[float], has_template: bool
) -> Iterator[tuple[str, str, str]]:
    report = found.report
    failed = [e for e in report.episodes if e.failed]
    if report.episodes and len(failed) >= FAILED * len(report.episodes):
        (what, remedy), *_ = warnings_of(report)
        yield "failed episodes", what, remedy
    if not has_template:
        yield (
            "template",
            "the model's tokenizer has no chat template, so the model may not know its chats",
            "Use an instruction-tuned model, or set tokenizer.chat_template.",
        )
    if not rewards:
        return
    cut = [e for e in report.episodes if e.failure is None and cut_answer(e)]
    low, high = min(rewards), max(rewards)
    if len(cut) >= CUT * len(rewards) and statistics.fmean(e.reward for e in cut) <= low + 0.1 * (high - low):
        yield (
            "cut answers",
            f"{len(cut)} of {len(rewards)} episodes have an answer that ended at its length, and they get the reward "
            f"{statistics.fmean(e.reward for e in cut):.2g}",
            "Raise the agent's max_tokens or rollout.sampling.max_tokens.",
        )
    if learning_rate := _learning_rate(job):
        yield ("learning rate", *learning_rate)
    if found.judge and found.judge.share >= MUCH_NOISE and found.judge.changed:
        noise = found.judge
        yield (
            "noisy judge",
            f"judged again, {noise.changed} of {noise.judged} outputs get another reward, which explains {noise.share:.0%} of the "
            "differences within groups",
            "Use a judge without chance: temperature 0, clearer criteria, or the mean of several verdicts.",
        )
    signal_now = found.signal.get(max(found.group_size, 2))
    if signal_now and signal_now[0] < LEAST_SIGNAL:
        solved = _solved(found, rewards)
        what = "solved" if solved else "too hard"
        yield (
            "saturated" if solved else "too hard",
            f"{signal_now[0]:.0%} of groups have different rewards: the tasks are {what} for this model",
            "Use harder tasks."
            if solved
            else "Use easier tasks, a stronger model, a reward for parts of the task, or examples first (`ajet sft`).",
        )
    for hole in found.holes or ():
        yield ("exploitable judge", hole.line, hole.remedy)


def cut_answer(episode: Episode) -> bool:
    """Whether an answer of an episode ended at its length."""
    return any(call.generation.finish_reason == "length" for call in episode.record.calls)


def _solved(found: Forecast, rewards: Sequence[float]) -> bool:
    if found.pass_at:
        return found.pass_at[1][0] > 0.5
    return statistics.fmean(rewards) > 0.5


def _learning_rate(job: Job) -> tuple[str, str] | None:
    """What is wrong with a learning rate far from those that models of this width take; None if nothing is."""
    if not (bounds := learning_rates(job)):
        return None
    rate, (low, high) = job.config.train.learning_rate, bounds
    if low <= rate <= high:
        return None
    how = "above" if rate > high else "below"
    return (
        f"train.learning_rate {rate:g} is far {how} the range of models of this width, {low:.1g} to {high:.1g}",
        f"Set train.learning_rate within it, such as {math.sqrt(low * high):.1g}.",
    )


def learning_rates(job: Job) -> tuple[float, float] | None:
    """The range of usual learning rates of a model; None if its width is not known.

    The centre is that of J. Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025: 5e-5 · (2000 / width)^0.775, and
    ten times that with an adapter. The range is a hundredth to five times of it: reinforcement learning of models of 7 billion
    weights takes 1e-6, the examples 5e-5 to 2e-3.
    """
    try:
        width = read_shape(model_source(job.model, job.config.run.seed, job.progress)).hidden
    except ConfigError:
        return None
    lora = any(target.lora for target in job.targets if target.trained)
    centre = 5e-5 * (2000 / width) ** 0.775 * (10 if lora else 1)
    return centre / 100, centre * 5


def _suggestions(job: Job, found: Forecast) -> Iterator[tuple[str, str]]:
    size, train = found.group_size, job.config.train
    now, more = found.signal.get(size), found.signal.get(2 * size)
    if now and more and now[0] < ENOUGH_SIGNAL and more[0] > now[0] + 0.1:
        yield (
            f"rollout.group_size: {2 * size}",
            f"groups with different rewards rise from {now[0]:.0%} to {more[0]:.0%}",
        )
    idle = found.always + found.never
    if (
        found.tasks
        and idle >= found.tasks / 3
        and train.dynamic_sampling == 1
        and now
        and now[0] >= LEAST_SIGNAL
    ):
        yield (
            "task.selector: difficulty",
            f"{found.always} of {found.tasks} tasks are always solved and {found.never} never, which teaches nothing; it takes those "
            "whose recent pass rate is near a half",
        )
    if found.gradient and found.gradient.noise_scale > 4 * train.batch_size:
        scale = found.gradient.noise_scale
        about = (
            f"about {scale:.0f} groups"
            if math.isfinite(scale)
            else f"more than {found.gradient.groups} groups"
        )
        yield (
            f"train.batch_size: {2 * train.batch_size}",
            f"the gradient of a step is mostly noise: signal equals noise at {about}",
        )
    calls = [len(c.generation.token_ids) for e in found.report.episodes for c in e.record.calls]
    limit = job.config.rollout.sampling.max_tokens
    if calls and limit and not found.report.cut and limit > 4 * max(calls):
        yield (
            f"rollout.sampling.max_tokens: {2 * max(calls)}",
            f"the longest answer has {max(calls)} tokens, so an answer that never ends costs {limit / max(calls):.0f} times that",
        )
