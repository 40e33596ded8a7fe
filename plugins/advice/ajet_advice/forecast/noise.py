"""The noise of a forecast: of the judge, asked about the same outputs again, and of the gradient, between groups."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ajet import GroupJudge, Job, JudgeOutput, Trainer, passthrough
from ajet.interfaces.helpers import called
from ajet.learning.batch import TokenSelection, build_batch
from ajet.learning.self_teacher import SelfTeacher
from ajet.rollout.episode import Episode
from ajet.rollout.groups import judged_groups, score
from ajet.runs.runtime import Runtime

MOST_REJUDGED = 16
FINEST = 100
"""A common direction that would need more than so many times the groups that were measured is not told from none."""


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


async def judged_again(runtime: Runtime, episodes: Sequence[Episode]) -> JudgeNoise | None:
    """Judge some of the outputs twice more, as what the first verdict was based on, such as files of the episode, may be gone;
    None if the judge cannot."""
    groups = list(judged_groups(episodes).values())
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
        verdicts = await score(judge, group)
        return [v for v in verdicts if isinstance(v, JudgeOutput)]
    views = [e.view() for e in group]
    return [
        await called(judge.judge, e.plan.task, v.output, v, name=name)
        for e, v in zip(group, views, strict=True)
    ]


def gradient_of(
    job: Job, trainer: Trainer, teacher: SelfTeacher | None, episodes: Sequence[Episode]
) -> Gradient | None:
    """The gradient's noise, by updates with a learning rate of 0, which change no weight."""
    groups = [group for group in judged_groups(episodes).values() if len(group) > 1]
    if len(groups) < 2:
        return None

    select = TokenSelection(job.filters, job.config.train.max_timelines, "forecast")

    def squared(some: Sequence[Episode]) -> float:
        batch = build_batch(
            some,
            job.learning,
            mini_batches=1,
            learning_rate=0.0,
            seed="forecast",
            selection=select,
            teacher=teacher,
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
    scale = max(noise, 0.0) / squared if squared * FINEST * groups > noise else math.inf
    return Gradient(groups, scale, math.sqrt(batch_size / scale) if scale else math.inf)
