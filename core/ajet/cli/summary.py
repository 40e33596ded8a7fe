"""The text printed after a finished or interrupted run."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ajet.utils.terminal import table

if TYPE_CHECKING:
    from ajet.interfaces.backbone import RunResult
    from ajet.reports.folder import RecordedRun
    from ajet.types import Metrics

FIGURES = (
    ("accuracy", "accuracy, sampled", ".3f"),
    ("greedy_accuracy", "accuracy, greedy", ".3f"),
    ("reward", "reward, sampled", ".3f"),
    ("greedy_reward", "reward, greedy", ".3f"),
    ("calls_per_episode", "calls per episode", ".2f"),
    ("episodes", "episodes", ".0f"),
    ("episodes_failed", "episodes failed", ".0f"),
)
"""(metric, label, format), in the order of the table."""


def describe_result(result: RunResult) -> str:
    """Figures before and after, the run folder, and what to look at next."""
    from ajet.reports.folder import read_run
    from ajet.reports.progress import seconds_of
    from ajet.reports.verdict import verdict_of

    parts, run = [], read_run(result.run_dir) if result.steps else None
    if result.after:
        parts.append(table([("validation", "before", "after"), *_figures(result.before, result.after)]))
    if run and (verdict := verdict_of(run)):
        parts.append(str(verdict))
    rows = [("run folder", str(result.run_dir))]
    if run:
        seconds = sum(seconds_of(line) for line in run.metrics if line["type"] == "train")
        rows.insert(0, ("trained", f"{result.steps} steps, {seconds:.0f} s without validation"))
    if run and (faults := _faults(run)):
        rows.append(("answers", faults))
    if result.checkpoint:
        rows.append(("checkpoint", str(result.checkpoint)))
        rows.append(
            (
                "evaluate it",
                shlex.join(
                    ["ajet", "eval", str(result.run_dir / "job.yaml"), "--model", str(result.checkpoint)]
                ),
            )
        )
    if list(result.run_dir.rglob("events.out.tfevents.*")):
        rows.append(("curves", shlex.join(["tensorboard", "--logdir", str(result.run_dir)])))
    rows.append(("every episode", shlex.join(["ajet", "show", str(result.run_dir)])))
    return "\n\n".join([*parts, table(rows)])


def describe_metrics_table(metrics: Metrics, *, greedy: bool) -> str:
    """The figures of one evaluation, with its failures by cause."""
    rows = [(words, format(metrics[name], form)) for name, words, form in FIGURES if name in metrics]
    rows += [(name, f"{value:.0f}") for name, value in metrics.items() if "failed/" in name]
    text = table(rows)
    return text.replace(", sampled", ", greedy ") if greedy else text


def _faults(run: RecordedRun) -> str:
    """What went wrong in the answers of a run; empty if nothing did."""
    from ajet.chat.answers import FAULTS

    counts = {name: sum(e.counters.get(name, 0) for e in run.entries) for name in FAULTS}
    told = [f"{n} {name.replace('_', ' ')}" for name, n in counts.items() if n]
    return f"{', '.join(told)}, in {sum(e.calls for e in run.entries)} calls" if told else ""


def _figures(before: Metrics, after: Metrics) -> list[tuple[str, str, str]]:
    shown = [f for f in FIGURES if f[0] in after]
    return [
        (words, format(before[name], form) if name in before else "-", format(after[name], form))
        for name, words, form in shown
    ]
