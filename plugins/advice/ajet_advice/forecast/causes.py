"""What keeps a job from learning, worst first, and what is worth a try."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from ajet import ConfigError, Job, model_source
from ajet.rollout.episode import Episode
from ajet.runs.check import warnings_of
from ajet_advice.forecast.figures import ForecastFigures
from ajet_advice.forecast.steps import Probe
from ajet_advice.known import read_shape

LEAST_SIGNAL = 0.1
"""Share of groups with different rewards below which hardly anything is learned."""
ENOUGH_SIGNAL = 0.5
SOLVED = 0.9
"""Pass rate from which hardly anything is left to learn."""
MUCH_NOISE = 0.5
"""Share of the differences within groups that the judge's noise may explain."""
FAILED = 0.2
"""Share of failed episodes that is named as a cause."""
CUT = 0.3
"""Share of episodes with a cut answer that is named as a cause, if they get hardly any reward."""

USUAL_EPSILON = 1e-6


def causes_of(job: Job, forecast: ForecastFigures, has_template: bool) -> Iterator[tuple[str, str, str]]:
    """(name, what stands in the way, what helps). ``has_template``: whether the model's tokenizer has a chat template."""
    report, rewards = forecast.report, forecast.report.rewards
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
            "Show the model a short answer in the prompt; if it needs more room, raise the agent's max_tokens or "
            "rollout.sampling.max_tokens.",
        )
    if learning_rate := _learning_rate(job, forecast.probe):
        yield ("learning rate", *learning_rate)
    if forecast.judge and forecast.judge.share >= MUCH_NOISE and forecast.judge.changed:
        noise = forecast.judge
        yield (
            "noisy judge",
            f"judged again, {noise.changed} of {noise.judged} outputs get another reward, which explains {noise.share:.0%} of the "
            "differences within groups",
            "Use a judge without chance: temperature 0, clearer criteria, or the mean of several verdicts.",
        )
    signal_now = forecast.signal.get(max(forecast.group_size, 2))
    solved = forecast.pass_at[1][0] if forecast.pass_at else statistics.fmean(rewards)
    known = bool(forecast.pass_at) or (min(rewards) >= 0 and max(rewards) <= 1)
    little = signal_now is not None and signal_now[0] < LEAST_SIGNAL
    differ = f"{signal_now[0]:.0%} of groups have different rewards" if signal_now else "groups are small"
    if len(rewards) > 1 and low == high not in (0, 1) and not forecast.pass_at:
        yield (
            "constant judge",
            f"the judge gave all {len(rewards)} episodes the reward {low:g}",
            "Let the judge tell better outputs from worse ones; `ajet show` has outputs to try it on.",
        )
    elif (forecast.pass_at and solved >= max(SOLVED, forecast.target)) or (little and known and solved > 0.5):
        yield (
            "saturated",
            f"{solved:.0%} is reached before training, and {differ}: nearly all tasks are solved already",
            "Use harder tasks.",
        )
    elif little and not known:
        yield (
            "no signal",
            f"{differ}: whether the tasks are too easy or too hard is not known, as the judge does not say what succeeds",
            "Let the judge also return whether an episode succeeds (is_success), or rewards from 0 to 1.",
        )
    elif little:
        yield (
            "too hard",
            f"{differ}: the tasks are too hard for this model",
            "Show the model solved examples in the prompt, use easier tasks, a stronger model or a reward for parts of the task, or "
            "fine-tune on examples first (`ajet sft`).",
        )
    for hole in forecast.holes or ():
        yield ("exploitable judge", hole.line, hole.remedy)


def cut_answer(episode: Episode) -> bool:
    """Whether an answer of an episode ended at its length."""
    return any(call.generation.finish_reason == "length" for call in episode.record.calls)


def _learning_rate(job: Job, probe: Probe | None) -> tuple[str, str] | None:
    """What is wrong with a learning rate that ruins the model in the steps of a probe, or is far from those that models of this width
    take; None if nothing is."""
    bounds = learning_rates(job)
    rate, (low, high) = job.config.train.learning_rate, bounds or (0.0, math.inf)
    within = f"Set train.learning_rate within {low:.1g} to {high:.1g}, such as {math.sqrt(low * high):.1g}."
    if probe and probe.ruined:
        lower = bounds and rate > math.sqrt(low * high)
        return (
            f"with train.learning_rate {rate:g}, {len(probe.rates)} steps have ruined the model: {probe.ruined}",
            within if lower else f"Lower train.learning_rate, such as to {rate / 10:g}.",
        )
    if low <= rate <= high:
        return None
    how = "above" if rate > high else "below"
    return f"train.learning_rate {rate:g} is far {how} the range of models of this width", within


def learning_rates(job: Job) -> tuple[float, float] | None:
    """The range of usual learning rates of a model; None if its width is not known.

    The centre is that of J. Schulman and Thinking Machines Lab, "LoRA Without Regret", 2025: 5e-5 · (2000 / width)^0.775, and
    ten times that with an adapter. The range is a hundredth to twice of it: reinforcement learning of models of 7 billion
    weights takes 1e-6, the examples at most 0.8 times of it, and three times have ruined models in four steps. With an
    ``adam_epsilon`` far above the usual one, which makes steps smaller, it goes to five times.
    """
    try:
        width = read_shape(model_source(job.model, job.config.run.seed, job.progress)).hidden
    except ConfigError:
        return None
    lora = any(target.lora for target in job.targets if target.trained)
    centre = 5e-5 * (2000 / width) ** 0.775 * (10 if lora else 1)
    return centre / 100, centre * (2 if job.config.train.adam_epsilon <= USUAL_EPSILON else 5)


def suggestions_of(job: Job, facts: ForecastFigures) -> Iterator[tuple[str, str]]:
    """(setting, reason)"""
    size, train = facts.group_size, job.config.train
    now, more = facts.signal.get(size), facts.signal.get(2 * size)
    if now and more and now[0] < ENOUGH_SIGNAL and more[0] > now[0] + 0.1:
        yield (
            f"rollout.group_size: {2 * size}",
            f"groups with different rewards rise from {now[0]:.0%} to {more[0]:.0%}",
        )
    idle = facts.always + facts.never
    if (
        facts.tasks
        and idle >= facts.tasks / 3
        and train.dynamic_sampling == 1
        and now
        and now[0] >= LEAST_SIGNAL
    ):
        yield (
            "task.selector: difficulty",
            f"{facts.always} of {facts.tasks} tasks are always solved and {facts.never} never, which teaches nothing; it takes those "
            "whose recent pass rate is near a half",
        )
    if facts.gradient and facts.gradient.noise_scale > 4 * train.batch_size:
        scale = facts.gradient.noise_scale
        about = (
            f"about {scale:.0f} groups"
            if math.isfinite(scale)
            else f"more than {facts.gradient.groups} groups"
        )
        yield (
            f"train.batch_size: {2 * train.batch_size}",
            f"the gradient of a step is mostly noise: signal equals noise at {about}",
        )
    calls = [len(c.generation.token_ids) for e in facts.report.episodes for c in e.record.calls]
    limit = job.config.rollout.sampling.max_tokens
    if calls and limit and not facts.report.cut and limit > 4 * max(calls):
        yield (
            f"rollout.sampling.max_tokens: {2 * max(calls)}",
            f"the longest answer has {max(calls)} tokens, so an answer that never ends costs {limit / max(calls):.0f} times that",
        )
