"""Models that were evaluated on the same tasks, in numbers: means with standard errors, and which is the best.

Takes the figures of each model's episodes, from the folder of `ajet_selection.selection` or from anywhere else. An episode
belongs to a task: episodes of one task are averaged first, and standard errors and tests are over tasks, because episodes
of one task are alike.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ajet.rollout.recorder import JOURNAL, live_lines
from ajet.types import Spent
from ajet.utils.statistics import holm, mean_and_error, sign_flip
from ajet.utils.terminal import table
from ajet_selection.selection import read_models

LEVEL = 0.05
"""A difference is significant if its p-value is below this."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A mean over tasks, and its standard error: None if there is one task only."""

    mean: float
    standard_error: float | None

    def __str__(self) -> str:
        """``0.62 ± 0.04``"""
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"{self.mean:.4g}{error}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One episode: its task, its reward (None if it failed), its duration in seconds, and what its calls used."""

    task: str
    reward: float | None
    seconds: float
    spent: Spent


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """What the episodes of a model say of it. The figures are None if it failed, and `tokens` and `cost` if none are known."""

    name: str
    error: str | None
    """Why it is not compared; None if it is."""
    episodes: int
    failed: int
    """Episodes among them that failed."""
    reward: Figure | None = None
    seconds: Figure | None = None
    """Duration of an episode."""
    tokens: Figure | None = None
    """Tokens of prompts and answers in an episode."""
    cost: Figure | None = None
    """Cost of an episode, in the currency of the model's prices."""


@dataclass(frozen=True, slots=True)
class RewardDifference:
    """The reward of the best model less that of another one, over the tasks."""

    other: str
    reward: Figure
    p_value: float
    """Of the sign-flip test, corrected by Holm's method for all pairs of models."""

    @property
    def is_significant(self) -> bool:
        """Whether such a difference would be rare between equal models."""
        return self.p_value < LEVEL


@dataclass(frozen=True, slots=True)
class Comparison:
    """The models, the one with the highest reward first and failed ones last, and how the first differs from the others."""

    models: Sequence[ModelFigures]
    differences: Sequence[RewardDifference]

    @property
    def best(self) -> str | None:
        """The name of the model with the highest mean reward; None if all failed."""
        first = self.models[0]
        return first.name if first.error is None else None

    @property
    def is_significant(self) -> bool:
        """Whether the best differs significantly from every other model that was compared."""
        return bool(self.differences) and all(d.is_significant for d in self.differences)

    @property
    def is_complete(self) -> bool:
        """Whether no model failed."""
        return all(model.error is None for model in self.models)

    def as_json(self) -> dict[str, Any]:
        """Plain data, as `ajet eval --json` prints it."""
        return {
            "best": self.best,
            "is_significant": self.is_significant,
            "models": [asdict(model) for model in self.models],
            "differences": [asdict(difference) for difference in self.differences],
        }


FIGURES = ("reward", "seconds", "tokens", "cost")
"""The names of the figures of a model."""


def read_comparison(run_dir: Path) -> Comparison:
    """The comparison in a run folder. Raises ConfigError if there is none."""
    outcomes, errors = {}, {}
    for line in read_models(run_dir):
        journal = live_lines(run_dir / line["folder"] / JOURNAL)
        outcomes[line["name"]] = [_outcome(episode) for episode in journal]
        if line["error"]:
            errors[line["name"]] = line["error"]
    return compare(outcomes, errors)


def compare(outcomes: Mapping[str, Sequence[Outcome]], errors: Mapping[str, str] | None = None) -> Comparison:
    """Compare models by the outcomes of their episodes; those with an error are listed only. All others must have
    episodes of the same tasks. A failed episode gets the lowest reward of any model's episode, and at most 0, so that
    failing on hard tasks never pays."""
    errors = errors or {}
    compared = [name for name in outcomes if name not in errors]
    given = [o.reward for name in compared for o in outcomes[name] if o.reward is not None]
    worst = min([0.0, *given])
    rewards = {
        name: _by_task(outcomes[name], [worst if o.reward is None else o.reward for o in outcomes[name]])
        for name in compared
    }
    figures = {name: _figures(name, outcomes[name], rewards[name]) for name in compared}
    order = sorted(compared, key=lambda name: -_mean(rewards[name].values()))
    failed = [
        ModelFigures(name, errors[name], len(outcomes[name]), _failed(outcomes[name]))
        for name in outcomes
        if name in errors
    ]
    return Comparison([*(figures[name] for name in order), *failed], _differences(order, rewards))


def _outcome(line: Mapping[str, Any]) -> Outcome:
    reward = line["reward"] if line["failure"] is None else None
    return Outcome(line["task"], reward, line["seconds"], Spent(**line.get("spent", {})))


def _figures(name: str, outcomes: Sequence[Outcome], rewards: Mapping[str, float]) -> ModelFigures:
    def figure(values: Sequence[float]) -> Figure | None:
        return Figure(*mean_and_error([*_by_task(outcomes, values).values()])) if any(values) else None

    return ModelFigures(
        name,
        None,
        len(outcomes),
        _failed(outcomes),
        Figure(*mean_and_error([*rewards.values()])),
        figure([o.seconds for o in outcomes]),
        figure([o.spent.tokens for o in outcomes]),
        figure([o.spent.cost for o in outcomes]),
    )


def _differences(order: Sequence[str], rewards: Mapping[str, Mapping[str, float]]) -> list[RewardDifference]:
    """Of the first model from each other one. All pairs are tested, because the data that chose the best are those that
    test it."""
    pairs = list(combinations(order, 2))
    between = {
        (one, two): [rewards[one][task] - rewards[two][task] for task in rewards[one]] for one, two in pairs
    }
    corrected = holm([sign_flip(between[pair]) for pair in pairs])
    return [
        RewardDifference(two, Figure(*mean_and_error(between[one, two])), p_value)
        for (one, two), p_value in zip(pairs, corrected, strict=True)
        if one == order[0]
    ]


def _by_task(outcomes: Sequence[Outcome], values: Sequence[float]) -> dict[str, float]:
    """The mean of the values of each task."""
    together: dict[str, list[float]] = {}
    for outcome, value in zip(outcomes, values, strict=True):
        together.setdefault(outcome.task, []).append(value)
    return {task: _mean(of_task) for task, of_task in together.items()}


def _mean(values: Collection[float]) -> float:
    return mean_and_error([*values])[0]


def _failed(outcomes: Sequence[Outcome]) -> int:
    return sum(o.reward is None for o in outcomes)


def describe_comparison(comparison: Comparison) -> str:
    """A line for each model, a line for each difference from the best, and the verdict."""
    head = ("model", "reward", "s / episode", "tokens / episode", "cost / episode", "episodes", "failed", "p")
    p_values = {d.other: f"{d.p_value:.2g}" for d in comparison.differences}
    rows = []
    for model in comparison.models:
        figures = [str(getattr(model, name) or "-") for name in FIGURES]
        counts = [str(model.episodes), str(model.failed)]
        rows.append((model.name, *figures, *counts, p_values.get(model.name, "")))
    errors = [f"{model.name} failed: {model.error}" for model in comparison.models if model.error]
    return "\n".join([table([head, *rows], most=sys.maxsize), "", *errors, verdict(comparison)])


def verdict(comparison: Comparison) -> str:
    """One line: which model is the best, or that there is no difference."""
    if comparison.best is None:
        return "no model could be evaluated"
    if not comparison.differences:
        return f"only {comparison.best} could be evaluated, so nothing was compared"
    if comparison.is_significant:
        return f"best: {comparison.best}"
    alike = [d.other for d in comparison.differences if not d.is_significant]
    return f"no difference between {comparison.best}, which has the highest reward, and {', '.join(alike)}: more tasks may show one"
