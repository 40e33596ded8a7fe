"""The text and the exit code of a comparison of models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ajet.cli.table import table

if TYPE_CHECKING:
    from ajet.reports.comparison import Comparison

FOUND, FAILED, NO_DIFFERENCE = 0, 1, 3


def describe_comparison(comparison: Comparison) -> str:
    """A line for each model, a line for each difference from the best, and the verdict."""
    from ajet.reports.comparison import FIGURES

    head = ("model", "reward", "s / episode", "tokens / episode", "cost / episode", "episodes", "failed", "p")
    p_values = {d.other: f"{d.p_value:.2g}" for d in comparison.differences}
    rows = []
    for model in comparison.models:
        figures = [str(getattr(model, name) or "-") for name in FIGURES]
        counts = [str(model.episodes), str(model.failed)]
        rows.append((model.name, *figures, *counts, p_values.get(model.name, "")))
    errors = [f"{model.name} failed: {model.error}" for model in comparison.models if model.error]
    return "\n".join([table([head, *rows]), "", *errors, verdict(comparison)])


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


def exit_code(comparison: Comparison) -> int:
    """0 if one model is significantly better than all others, 1 if a model failed, 3 if there is no difference."""
    if not comparison.is_complete:
        return FAILED
    return FOUND if comparison.is_significant else NO_DIFFERENCE
