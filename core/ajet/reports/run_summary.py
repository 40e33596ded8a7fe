"""The summary of a run as plain data: `text` and `html` show it, `--json` prints it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.interfaces.base import by_type
from ajet.job.objects import OBJECT, OWN_LOOP
from ajet.reports.credit import RunCredit, zero_advantage
from ajet.reports.folder import Entry, RecordedRun
from ajet.reports.verdict import verdict_of
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL
from ajet.runs.run_state import RunState, state_of
from ajet.tracker.breaks import CAUSES

MOST_ROWS = 20
_TRAIN_NOTHING = {"debug", "prompts"}
"""Backbones that do not take `train.steps` steps."""

MEANINGS = {
    "overridden": "sampling parameters of the agent that the job's settings replaced (rollout.sampling)",
    "malformed_tool_calls": "tool calls that could not be read and reached the agent as text",
    "cut_calls": "tool calls without an end, which reached the agent as text",
    "unoffered_tool_calls": "calls of tools that the request does not offer, which reached the agent as text",
    "calls_in_thoughts": "tool calls in a thought without an end, which they ended",
    "cut_thoughts": "answers with a thought that has no end",
    "tools_left_out": "calls with tools that the model's chat template does not write into the prompt",
    "left_out": "calls answered without what they ask for: tools that a hosted API runs itself, images that the model cannot see",
    "rendered_anew": "prompts that could not continue stored tokens, so the chat was rendered again",
    "drift": "stored tokens used for text that the agent sent back in another form (rollout.merge: text)",
    "context_overflow": "calls refused because the prompt filled the model's context",
    "refused": "calls that were refused",
    "abandoned": "calls that the agent left before their answer was complete, so they are not recorded",
    "tokens_not_received": "sampled tokens of answers that no client got",
    "judge_check_failed": "episodes that the second judge (judge_check) could not judge",
    "attempt_end_failed": "plugins that failed at the end of an attempt (ajet_attempt)",
}
"""Explanations of counters, by name or by the part before the colon."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """The figures of one step. Rewards and accuracies are means over its episodes."""

    step: int
    reward: float | None
    accuracy: float | None
    zero_advantage: float | None
    """Share of the groups with zero advantage."""
    failed: int
    validation: float | None
    """Accuracy of the validation after the step, or its reward if no verdict says success."""
    greedy: float | None
    loss: float | None


@dataclass(frozen=True, slots=True)
class Count:
    """How often something happened, and what it means or how to fix it."""

    name: str
    count: int
    about: str


@dataclass(frozen=True, slots=True)
class SteeredTask:
    """A task of which some groups began with calls of an earlier episode."""

    task: str
    rates: tuple[tuple[int, float], ...]
    """The step and the pass rate of each whole group."""
    starts: tuple[tuple[int, int], ...]
    """The step of each other group, and with how many calls it began."""


@dataclass(frozen=True, slots=True)
class Pick:
    """An episode worth reading, and why."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Everything that a run's first page shows."""

    run: str
    name: str | None
    tags: tuple[str, ...]
    state: RunState
    workflow: str
    """This and the next three fields are empty if the folder has no job."""
    model: str
    backbone: str
    algorithm: str
    steps: int
    """Training steps done."""
    steps_wanted: int
    """0 if nothing is trained."""
    checkpoint: str | None
    age: float
    """Seconds since an episode was last written."""
    episodes: Mapping[str, int]
    """Number of episodes by phase."""
    validates: str
    """What `StepRow.validation` measures: accuracy or reward."""
    rows: tuple[StepRow, ...]
    rewards: tuple[float, ...]
    """Rewards of all training steps."""
    curves: Mapping[str, tuple[tuple[int, float], ...]]
    """The curves of the chart, by name: (step, value) of the training reward and of validations."""
    groups: int
    groups_zero_advantage: int
    retried: int
    failures: tuple[Count, ...]
    counters: tuple[Count, ...]
    breaks: tuple[Count, ...]
    steered: tuple[SteeredTask, ...]
    """Those with the most steered groups."""
    picks: tuple[Pick, ...]
    notes: tuple[str, ...]
    verdict: tuple[str, ...]
    """What was learned, which alarms were raised, what to try next; empty if nothing was trained."""


def summarise(run: RecordedRun, credit: RunCredit) -> RunSummary:
    """The summary of a run."""
    job = run.job
    rows, validates = step_rows(run.metrics)
    zero, groups = zero_advantage(run, credit)
    saved = checkpoints(run.dir)
    told, state = run_head(run.dir, job, run.metrics)
    return RunSummary(
        **told,
        state=state,
        workflow=str(by_type(job.get("workflow") or "").get("type")).removeprefix(OBJECT),
        checkpoint=str(saved[-1]) if saved else None,
        age=max(0.0, time.time() - (run.dir / JOURNAL).stat().st_mtime),
        episodes=dict(Counter(e.phase for e in run.entries)),
        validates=validates,
        rows=tuple(_thinned(rows)),
        rewards=tuple(row.reward for row in rows if row.reward is not None),
        curves=_curves(rows, validates),
        groups=groups,
        groups_zero_advantage=zero,
        retried=sum(e.attempt > 0 for e in run.entries),
        failures=_failures(run.entries),
        counters=_counters(run.entries),
        breaks=tuple(
            Count(cause, n, CAUSES.get(cause, ""))
            for cause, n in _sum(e.breaks for e in run.entries).most_common()
        ),
        steered=tuple(_steered(run.entries)),
        picks=tuple(_picks(run.entries)),
        notes=tuple(credit.notes),
        verdict=tuple(verdict.lines if (verdict := verdict_of(run)) else ()),
    )


def run_head(
    run_dir: Path, job: Mapping[str, Any], metrics: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Any], RunState]:
    """What a run's summary and its line in a list have in common, by the names of their fields, and its state."""
    train, own = job.get("train") or {}, job.get("run") or {}
    steps = max((line["step"] for line in metrics if line["type"] == "train"), default=0)
    wanted = wanted_steps(job)
    told = {
        "run": str(run_dir),
        "name": own.get("name"),
        "tags": tuple(own.get("tags") or ()),
        "steps": steps,
        "steps_wanted": wanted,
        "model": str(job.get("model") or ""),
        "backbone": str((job.get("backbone") or {}).get("name", "")),
        "algorithm": str((train.get("algorithm") or {}).get("type", "")),
    }
    return told, state_of(run_dir, steps, wanted)


def wanted_steps(job: Mapping[str, Any]) -> int:
    """How many training steps a job asks for; 0 if its backbone trains nothing, or if a loop of the user's own decides."""
    trains = (job.get("backbone") or {}).get("name") not in _TRAIN_NOTHING
    own_loop = (job.get("task") or {}).get("reader") == {"type": OWN_LOOP}
    return int((job.get("train") or {}).get("steps") or 0) if trains and not own_loop else 0


# --------------------------------------------------------------------------- figures by step


def step_rows(metrics: Sequence[Mapping[str, Any]]) -> tuple[list[StepRow], str]:
    """A row for each step that was trained or validated, and what the validations measure."""
    by_step: dict[int, dict[str, Mapping[str, Any]]] = {}
    for line in metrics:
        by_step.setdefault(line["step"], {})[line["type"]] = line
    validations = [kinds[k] for kinds in by_step.values() for k in ("validation", "greedy") if k in kinds]
    figure = "accuracy" if any("accuracy" in line for line in validations) else "reward"
    rows = []
    for step, kinds in sorted(by_step.items()):
        sampled = kinds.get("train") or kinds.get("debug") or {}
        rows.append(
            StepRow(
                step,
                sampled.get("reward"),
                sampled.get("accuracy"),
                sampled.get("groups_zero_advantage"),
                int(sum(line.get("episodes_failed", 0) for line in kinds.values())),
                kinds.get("validation", {}).get(figure),
                kinds.get("greedy", {}).get(figure),
                sampled.get("loss"),
            )
        )
    return rows, figure


def step_curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, tuple[tuple[int, float], ...]]:
    """The curves of the chart of a run with these metrics."""
    return _curves(*step_rows(metrics))


def _curves(rows: Sequence[StepRow], validates: str) -> dict[str, tuple[tuple[int, float], ...]]:
    """The curves with at least two points. Training reward comes first, if it has enough."""
    trained = [(row.step, row.reward) for row in rows]
    curves = {
        "training reward": trained,
        f"validation {validates}": [(row.step, row.validation) for row in rows],
        f"greedy {validates}": [(row.step, row.greedy) for row in rows],
    }
    points = {name: tuple((s, v) for s, v in line if v is not None) for name, line in curves.items()}
    return {name: line for name, line in points.items() if len(line) > 1}


def _thinned(rows: Sequence[StepRow]) -> list[StepRow]:
    """At most `MOST_ROWS`: up to half of them validations, the rest even steps; first and last always."""
    validated = [i for i, row in enumerate(rows) if row.validation is not None or row.greedy is not None]
    keep = set(_even(validated, MOST_ROWS // 2))
    for count in range(MOST_ROWS, 0, -1):
        chosen = keep | set(_even(range(len(rows)), count))
        if len(chosen) <= MOST_ROWS:
            return [rows[i] for i in sorted(chosen)]
    return []


def _even(items: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the items, evenly spaced, including the first and the last."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)] if most > 1 else [items[-1]]


# --------------------------------------------------------------------------- counts


def _failures(entries: Iterable[Entry]) -> tuple[Count, ...]:
    """Failures by cause, each with the latest message."""
    latest = {entry.failure: entry for entry in entries if entry.failure}
    counts = Counter(entry.failure for entry in entries if entry.failure)
    return tuple(
        Count(cause, n, f"{latest[cause].id}: {' '.join(latest[cause].error.split())}")
        for cause, n in counts.most_common()
    )


def _counters(entries: Iterable[Entry]) -> tuple[Count, ...]:
    counts = _sum(entry.counters for entry in entries)
    return tuple(Count(n, c, MEANINGS.get(n.partition(":")[0], "")) for n, c in counts.most_common() if c)


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _steered(entries: Iterable[Entry]) -> list[SteeredTask]:
    groups: dict[str, dict[Any, list[Entry]]] = {}
    for entry in entries:
        if entry.phase == "train" and not (entry.fork and not entry.fork.steered):
            groups.setdefault(entry.task, {}).setdefault(entry.group, []).append(entry)
    tasks = []
    for task, of_task in groups.items():
        whole = [group for group in of_task.values() if not group[0].fork]
        starts = [(group[0].step, group[0].fork.calls) for group in of_task.values() if group[0].fork]
        rates = [(group[0].step, sum(map(_passed, group)) / len(group)) for group in whole]
        if starts:
            tasks.append(SteeredTask(task, tuple(rates), tuple(starts)))
    return sorted(tasks, key=lambda one: -len(one.starts))[:MOST_ROWS]


def _passed(entry: Entry) -> float:
    return 0.0 if entry.failure else entry.reward if entry.is_success is None else float(entry.is_success)


# --------------------------------------------------------------------------- what to look at next


def _picks(entries: Sequence[Entry]) -> list[Pick]:
    """The most informative episodes, the latest of each kind, without duplicates."""
    judged = [e for e in entries if e.failure is None]
    learned = [e for e in judged if e.group is not None] or judged
    last = max((e.step for e in learned), default=0)
    last_step = [e for e in learned if e.step == last]
    wanted: list[tuple[str, Entry | None]] = [
        ("best reward", max(reversed(last_step), key=lambda e: e.reward, default=None)),
        ("worst reward", min(reversed(last_step), key=lambda e: e.reward, default=None)),
        ("failed", next((e for e in reversed(entries) if e.failure), None)),
        ("breaks", next((e for e in reversed(entries) if e.breaks), None)),
        ("longest", max(judged, key=lambda e: (e.sampled, e.calls), default=None)),
    ]
    reasons: dict[str, list[str]] = {}
    for why, entry in wanted:
        if entry is not None:
            reasons.setdefault(entry.id, []).append(f"{why}: {_told(why, entry)}")
    return [Pick(episode, "; ".join(told)) for episode, told in reasons.items()]


def _told(why: str, entry: Entry) -> str:
    if why == "failed":
        return str(entry.failure)
    if why == "breaks":
        return ", ".join(f"{n} {cause}" for cause, n in entry.breaks.items())
    if why == "longest":
        return f"{entry.sampled} tokens in {entry.calls} calls" if entry.sampled else f"{entry.calls} calls"
    return f"{entry.reward:g} at step {entry.step}"
