"""Which tasks a training step takes, and in which order: the job's `task.selector`.

A selector gives, for each step, an endless sequence of tasks. A step takes its first ``batch_size`` tasks; dynamic sampling
and over-sampling take those after them. All but `ByDifficulty` are pure functions of the step, so resuming needs no other
state. `ByDifficulty` depends on the pass rates of the steps before, which the run folder keeps.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, cycle, groupby, islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from ajet.interfaces.reader import tasks_of_step, value_at
from ajet.learning.settings import SelectorSettings
from ajet.rollout.episode import Episode
from ajet.types import AjetError, ConfigError, Float64, Metrics, Task


class PassRate(NamedTuple):
    """What a group of episodes shows of its task."""

    task: str
    """The task's id."""
    rate: float
    """Share of the episodes that passed, from 0 to 1. An episode can pass in part."""
    episodes: int


class TaskSelector(ABC):
    """Base of selectors."""

    learns = False
    """Whether `observe` has an effect on later steps."""

    @abstractmethod
    def order(self, step: int) -> Iterator[Task]:
        """The tasks for the groups of a step, counted from 1; without end."""

    def observe(self, groups: Sequence[PassRate]) -> Metrics:
        """Learn from the groups of a step, before the order of the next one is asked for. Returns metrics."""
        return {}


@dataclass(frozen=True, slots=True)
class Shuffled(TaskSelector):
    """A random order for each epoch. Further groups get tasks that the step does not have yet, as long as there are any, in
    an order of the step, so that the regular tasks of all steps are unchanged."""

    tasks: Sequence[Task]
    batch_size: int
    seed: int

    def order(self, step: int) -> Iterator[Task]:
        """See `TaskSelector.order`."""
        own = tasks_of_step(self.tasks, step - 1, self.batch_size, self.seed)
        return chain(own, further_tasks(self.tasks, step, batch_size=self.batch_size, seed=self.seed))


def further_tasks(tasks: Sequence[Task], step: int, *, batch_size: int, seed: int) -> Iterator[Task]:
    """The tasks of a step's further groups, without end. Most steps take none, so the order is made for the first that is taken."""
    own = {task.id for task in tasks_of_step(tasks, step - 1, batch_size, seed)}
    order = random.Random(f"{seed}:{step}:further").sample(list(tasks), len(tasks))
    order.sort(key=lambda task: task.id in own)
    yield from cycle(order)


@dataclass(frozen=True, slots=True)
class InOrder(TaskSelector):
    """The tasks in their order, again and again. Further groups get the tasks that follow."""

    tasks: Sequence[Task]
    batch_size: int

    def order(self, step: int) -> Iterator[Task]:
        """See `TaskSelector.order`."""
        return islice(cycle(self.tasks), (step - 1) * self.batch_size % len(self.tasks), None)


class ByDifficulty(TaskSelector):
    """Tasks whose estimated pass rate is nearest to a target, as BOTS selects them (Shen et al., arXiv:2510.26374).

    The estimate of a task is a Beta distribution. After each step all distributions lose a part of what they have learned,
    and those of the step's tasks gain the numbers of passed and failed episodes in the step. If the tasks have known pass rates of a
    weaker and a stronger model, the model in training is placed on the line between the two, and its pass rates there count
    for the tasks that were not in the step.
    """

    learns = True

    def __init__(
        self, tasks: Sequence[Task], settings: SelectorSettings, *, group_size: int, seed: int
    ) -> None:
        """Raises ConfigError if a task has no known pass rate where one is named."""
        self._tasks = tasks
        self._settings = settings
        self._group_size = group_size
        self._seed = seed
        self._index = {task.id: i for i, task in enumerate(tasks)}
        self._seen = np.zeros(len(tasks), bool)
        self._known = known_pass_rates(tasks, settings.pass_rates)
        # With one field, the stronger model is one that passes everything.
        if self._known.shape[1] == 1:
            self._known = np.hstack([self._known, np.ones_like(self._known)])
        self._place: float | None = None
        # What learning from the known pass rates alone, for very many steps, would lead to.
        prior = self._implied() / settings.forgetting
        self._passed, self._failed = 1 + prior[:, 0], 1 + prior[:, 1]

    def expected(self) -> Float64:
        """float64[N]: the mean of each task's estimate."""
        mean: Float64 = self._passed / (self._passed + self._failed)
        return mean

    def order(self, step: int) -> Iterator[Task]:
        """See `TaskSelector.order`. Ties are broken at random; in a step, a task comes again only when all others have come."""
        settings = self._settings
        draw = np.random.default_rng(random.Random(f"{self._seed}:{step}:selector").getrandbits(64))
        rates = draw.beta(self._passed, self._failed) if settings.thompson_sampling else self.expected()
        distance = np.abs(rates - settings.target_pass_rate)
        if settings.softmax_temperature:
            # The order of these sums is a draw without replacement from the softmax (the Gumbel-top-k trick).
            distance = distance / settings.softmax_temperature - draw.gumbel(size=len(distance))
        nearest = np.lexsort((draw.random(len(distance)), distance))
        return cycle([self._tasks[i] for i in nearest])

    def observe(self, groups: Sequence[PassRate]) -> Metrics:
        """See `TaskSelector.observe`. Groups of unknown tasks have no effect: a resumed run may have other tasks."""
        groups = [group for group in groups if group.task in self._index]
        if not groups:
            return {}
        indices = np.array([self._index[group.task] for group in groups])
        rates = np.array([group.rate for group in groups])
        episodes = np.array([group.episodes for group in groups])
        foreseen = self.expected()[indices]
        self._locate(indices, rates)
        gain = self._implied()
        gain[indices] = 0
        np.add.at(gain, indices, np.stack([rates * episodes, (1 - rates) * episodes], axis=1))
        kept = 1 - self._settings.forgetting
        self._passed = 1 + kept * (self._passed - 1) + gain[:, 0]
        self._failed = 1 + kept * (self._failed - 1) + gain[:, 1]
        self._seen[indices] = True
        return {
            "selector/pass_rate": float(rates.mean()),
            "selector/expected_pass_rate": float(foreseen.mean()),
            "selector/expected_pass_rate_all": float(self.expected().mean()),
            "selector/tasks_seen": int(self._seen.sum()),
        }

    def _locate(self, indices: Any, rates: Float64) -> None:
        """Place the model on the line from the weaker model (0) to the stronger one (1)."""
        if not self._known.size:
            return
        weaker, stronger = self._known[indices].mean(axis=0)
        if stronger - weaker < _LEAST_GAP:
            return
        place = float((rates.mean() - weaker) / (stronger - weaker))
        self._place = place if self._place is None else _INERTIA * self._place + (1 - _INERTIA) * place

    def _implied(self) -> Float64:
        """float64[N, 2]: counts of passed and failed episodes that the known pass rates imply; zeros without any."""
        if not self._known.size:
            return np.zeros((len(self._tasks), 2))
        weaker, stronger = self._known.T
        # Before the first step, one field means the model itself, and two mean that it is between them.
        first = 0.0 if len(self._settings.pass_rates) == 1 else 0.5
        place = first if self._place is None else self._place
        rates = np.clip(weaker + place * (stronger - weaker), 0, 1)
        counts: Float64 = (
            self._settings.known_weight * self._group_size * np.stack([rates, 1 - rates], axis=1)
        )
        return counts


_INERTIA = 0.9
"""Share of the former place in the new one."""
_LEAST_GAP = 0.01
"""Difference of the known pass rates from which a step's rewards place the model between them."""


def make_selector(
    settings: SelectorSettings, tasks: Sequence[Task], *, batch_size: int, group_size: int, seed: int
) -> TaskSelector:
    """The selector of a job. Raises ConfigError if a task has no known pass rate where one is named."""
    match settings.type:
        case "shuffle":
            return Shuffled(tasks, batch_size, seed)
        case "sequential":
            return InOrder(tasks, batch_size)
        case "easy_to_hard":
            known = known_pass_rates(tasks, settings.pass_rates)
            easiest = sorted(range(len(tasks)), key=lambda i: tuple(-known[i]))
            return InOrder([tasks[i] for i in easiest], batch_size)
        case "difficulty":
            return ByDifficulty(tasks, settings, group_size=group_size, seed=seed)


def known_pass_rates(tasks: Sequence[Task], fields: Sequence[str]) -> Float64:
    """float64[N, F] from the metadata of N tasks. Raises ConfigError that names a task without such a number."""
    return np.array([[_known(task, field) for field in fields] for task in tasks], float).reshape(
        len(tasks), len(fields)
    )


def _known(task: Task, field: str) -> float:
    value = value_at(task.metadata, field)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ConfigError(
            "task.selector.pass_rates",
            f"the field {field!r} of the task {task.id!r} is {value!r}, not a number from 0 to 1. "
            f"Its fields: {', '.join(task.metadata) or 'none'}. Name another field, or leave such tasks out with task.reader.where.",
        )
    return float(value)


def pass_rates(episodes: Iterable[Episode]) -> list[PassRate]:
    """The pass rates of whole groups, whose episodes follow each other. Raises AjetError if a reward is not a pass rate."""
    groups = [list(group) for _, group in groupby(episodes, key=lambda e: e.plan.group)]
    return [
        PassRate(group[0].plan.task.id, sum(map(passed, group)) / len(group), len(group)) for group in groups
    ]


class _Outcome(Protocol):
    """How an episode has ended."""

    @property
    def id(self) -> str: ...

    @property
    def failure(self) -> str | None: ...

    @property
    def reward(self) -> float: ...

    @property
    def is_success(self) -> bool | None: ...


def passed(episode: _Outcome, key: str = "task.selector") -> float:
    """1 if an episode has succeeded, else its reward. A failed episode has not succeeded. Raises AjetError, which names the ``key``
    that needs it, if the reward is not a pass rate."""
    if episode.failure:
        return 0.0
    if episode.is_success is not None:
        return float(episode.is_success)
    if not 0 <= episode.reward <= 1:
        raise AjetError(
            key,
            f"the reward {episode.reward:g} of {episode.id} is not a pass rate, as it is not from 0 to 1. Let "
            "the judge also say whether the episode succeeded: JudgeOutput(reward=…, is_success=…).",
        )
    return episode.reward
