"""What the page shows of runs: the list, one run, its curves, steps and logs."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from ajet.interfaces.base import by_type
from ajet.interfaces.progress import LOG
from ajet.job.objects import OBJECT, OWN_LOOP
from ajet.rollout.checkpoints import CHECKPOINTS, fault, validation_reward
from ajet.rollout.recorder import JOURNAL
from ajet.runs.run_state import state_of
from ajet.utils.keys import leaves
from ajet_studio import live
from ajet_studio.answers import RefusedView, is_number, missing, thinned
from ajet_studio.explanations import explain_counter, explain_metric
from ajet_studio.index import faults, torn
from ajet_studio.library import Library
from ajet_studio.opened import REJUDGED, OpenRun
from ajet_studio.run_files import Metrics, began

MOST_POINTS = 2000
MOST_IN_ROW = 40
"""Rewards of a run in the list of all, drawn as a small curve."""
MOST_STEPS = 500
MOST_LINES = 500
_TRAIN_NOTHING = {"debug", "prompts"}
"""Backbones that do not take `train.steps` steps."""
_LOG_BLOCK = 1 << 20
_LOGS = {".log", ".txt", ".out", ".err"}
_RECORDS = ("restarts.jsonl", "versions.json", "feedback.jsonl")


def runs(library: Library) -> dict[str, Any]:
    """The folder and a row for each run in it."""
    rows = []
    for id in library.ids():
        try:
            rows.append(run_row(library.run(id)))
        except RefusedView:  # deleted a moment ago
            continue
    return {"folder": library.name, "runs": rows}


def run_row(run: OpenRun) -> dict[str, Any]:
    """A run in one row."""
    job, problem = run.job()
    figures = run.digest(_digest)
    train, about = _mapping(job.get("train")), _mapping(job.get("run"))
    backbone = _text(_mapping(job.get("backbone")).get("name", job.get("backbone")))
    own_loop = by_type(_mapping(job.get("task")).get("reader")) == {"type": OWN_LOOP}
    wanted = 0 if own_loop or backbone in _TRAIN_NOTHING else _whole(train.get("steps"))
    state = state_of(run.dir, figures["steps"], wanted)
    span = run.span()
    start = began(run.dir, span)
    tags = about.get("tags")
    return {
        "run": run.id,
        "source": run.source is not None,
        "name": run.title,
        "folder": run.name,
        "tags": [_text(tag) for tag in tags] if isinstance(tags, list) else [],
        "state": "unreadable" if problem else state.name,
        "started": datetime.fromtimestamp(start).astimezone().isoformat(timespec="seconds") if start else "",
        "seconds": max(0.0, round(span[1] - span[0], 1)) if span[1] else None,
        "workflow": _text(_mapping(job.get("workflow")).get("type", job.get("workflow"))).removeprefix(
            OBJECT
        ),
        "backbone": backbone,
        "model": _text(job.get("model")),
        "algorithm": _text(_mapping(train.get("algorithm")).get("type", train.get("algorithm"))),
        # Earlier releases did not write a longer goal of a resumed run.
        "steps_wanted": wanted if figures["steps"] <= wanted else 0,
        **figures,
        # A loop of one's own may give each step a rate of its own.
        "learning_rate": figures["learning_rate"] if own_loop else _real(train.get("learning_rate")),
        "episodes": figures["episodes"] or run.index.count(),
        "problem": problem or run.problem() or figures["problem"] or state.why,
    }


def _digest(metrics: Metrics) -> dict[str, Any]:
    """What a row says of the metrics."""
    train = next(filter(None, map(metrics.of, ("train", "debug", "online"))), [])
    rewards = [line["reward"] for line in train if is_number(line.get("reward"))]
    validations = metrics.of("validation")
    # The accuracy, or the reward if no verdict says success: the same of all.
    figure = "accuracy" if any("accuracy" in line for line in validations) else "reward"
    known = [(line["step"], line[figure]) for line in validations if is_number(line.get(figure))]
    before = known[0][1] if known and known[0][0] == 0 else None
    after = known[-1][1] if known and known[-1][0] > 0 else None
    return {
        "steps": int(train[-1]["step"]) if train else 0,
        "episodes": sum(_whole(line.get("episodes")) for line in metrics.lines),
        "reward": rewards[-1] if rewards else None,
        "rewards": [round(reward, 4) for reward in thinned(rewards, MOST_IN_ROW)],
        "learning_rate": next((_real(line.get("learning_rate")) for line in reversed(train)), None),
        "validation_before": before,
        "validation_after": after,
        "gain": None if before is None or after is None else after - before,
        "problem": next(iter(metrics.problems), ""),
    }


def run(run: OpenRun) -> dict[str, Any]:
    """One run."""
    seen = live.state(run)
    row = run_row(run)
    complete = run.index.update()
    metrics = run.metrics()
    problems = [p for p in (run.job()[1], run.problem(), run.index.problem, *metrics.problems) if p]
    phases: dict[str, dict[str, int]] = {}
    counters: Counter[str] = Counter()
    last: dict[str, str] = {}
    with run.index.reading() as db:
        problems += [f"{JOURNAL}: {text}" for text in faults(db)]
        for phase, steps, episodes in db.execute(
            "SELECT phase, count(DISTINCT step), count(*) FROM episodes GROUP BY phase"
        ):
            phases[phase] = {"steps": steps, "episodes": episodes}
        # SQLite takes the id from the row with the greatest line.
        rows = db.execute(
            "SELECT counters, count(*), id, max(line) FROM episodes GROUP BY counters ORDER BY max(line)"
        )
        for text, times, episode, _ in rows:
            for name, count in json.loads(text).items():
                counters[name] += count * times
                if count:
                    last[name] = episode
    for phase in metrics.phases():
        totals = phases.setdefault(phase, {"steps": 0, "episodes": 0})
        totals["steps"] = max(totals["steps"], len(metrics.of(phase)))
    names = _names(metrics)
    alarms = [name.removeprefix("alarm/") for name in names if name.startswith("alarm/")]
    if alarms and not row["problem"]:  # of a run that goes on; it is told with one that has ended
        row["problem"] = (
            f"alarms: {', '.join(alarms)}; ajet show {shlex.quote(str(run.dir))} has their remedies"
        )
    if row["state"] != "live" and torn(run.dir / JOURNAL):
        problems.append(f"{JOURNAL}: the last line was cut off; it is left out")
    return {
        **row,
        "seen": seen,
        "episodes": sum(phase["episodes"] for phase in phases.values()) or row["episodes"],
        "indexed": 1.0 if complete else run.index.progress(),
        "settings": {name: _inside(run, value) for name, value in leaves(run.job()[0])},
        "phases": phases,
        "metrics": names,
        "counters": {
            name: {"value": n, "explanation": explain_counter(name), "episode": last[name]}
            for name, n in counters.most_common()
            if n
        },
        "problems": problems,
        "checkpoints": _checkpoints(run.dir),
        "verdict": _verdict(run) if complete and not run.source else None,
        "rejudged": (run.dir / REJUDGED).is_file(),
        "note": {"tokenizer": run.text_of.missing},
    }


def _verdict(run: OpenRun) -> dict[str, Any] | None:
    verdict = run.verdict()
    if verdict is None:
        return None
    first, *others = verdict.lines
    return {
        "outcome": verdict.outcome,
        "told": first.partition(": ")[2],
        "alarms": [line.removeprefix("alarm ") for line in others[: len(verdict.alarms)]],
        "advice": list(verdict.advice),
    }


def series(run: OpenRun, name: str, phase: str, clock: bool = False) -> dict[str, Any]:
    """A metric over the steps, or over the seconds from the first episode to the end of each step's last one, as far as the index
    knows it; thinned evenly to at most `MOST_POINTS` points."""
    points = [[line["step"], line[name]] for line in run.metrics().of(phase) if is_number(line.get(name))]
    if clock:
        run.index.update()
        with run.index.reading() as db:
            ends = dict(
                db.execute("SELECT step, max(ended) FROM episodes WHERE phase = ? GROUP BY step", (phase,))
            )
        first = run.span()[0]
        points = sorted([round(ends[step] - first, 1), value] for step, value in points if ends.get(step))
    return {"points": thinned(points, MOST_POINTS)}


def steps(run: OpenRun, phase: str, after: int | None, limit: int) -> dict[str, Any]:
    """The steps of a phase after one step: their metrics, and the figures of their episodes so far."""
    run.index.update()
    rows: dict[int, dict[str, Any]] = {}
    with run.index.reading() as db:
        for step, episodes, reward, failures in db.execute(
            "SELECT step, count(*), avg(reward) FILTER (WHERE failure IS NULL), count(failure) FROM episodes "
            "WHERE phase = ? GROUP BY step",
            (phase,),
        ):
            rows[step] = {
                "step": step,
                "episodes": episodes,
                "reward": reward,
                "failures": failures,
                "seconds": None,
            }
    for line in run.metrics().of(phase):
        row = rows.setdefault(
            line["step"], {"step": line["step"], "episodes": 0, "reward": None, "failures": 0}
        )
        known = {name: value for name, value in line.items() if name not in ("type", "step")}
        times = [known[n] for n in ("seconds_rollout", "seconds_update") if is_number(known.get(n))]
        row |= {
            "failures": known.get("episodes_failed", row["failures"]),
            "seconds": sum(times) if times else None,
        }
        row |= known
    later = [row for step, row in sorted(rows.items()) if after is None or step > after]
    return {"total": len(rows), "rows": later[: min(limit, MOST_STEPS)]}


def tables(run: OpenRun) -> dict[str, Any]:
    """What the source of a run's episodes says of itself, as tables by title."""
    tables = run.source.tables() if run.source else {}
    return {"tables": [{"title": title, "rows": rows} for title, rows in tables.items()]}


def log(run: OpenRun, name: str | None, before: int | None) -> dict[str, Any]:
    """The log files of a run folder, or the last lines of one that end before a byte."""
    files = _log_files(run.dir)
    if name is None:
        return {"files": [{"name": path.name, "bytes": path.stat().st_size} for path in files.values()]}
    if name not in files:
        raise missing(f"{name}: no such log in {run.name}")
    try:
        with files[name].open("rb") as file:
            end = file.seek(0, 2)
            end = end if before is None else max(0, min(before, end))
            start = max(0, end - _LOG_BLOCK)
            file.seek(start)
            data = file.read(end - start)
    except OSError as error:
        raise missing(f"{name}: {error.strerror}") from None
    if start and b"\n" in data[:-1]:  # begin with a whole line
        cut = data.index(b"\n") + 1
        start, data = start + cut, data[cut:]
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    kept = lines[-MOST_LINES:]
    start += sum(len(line) + 1 for line in lines[: len(lines) - len(kept)])
    return {"lines": [line.decode("utf-8", "replace")[:20_000] for line in kept], "start": start}


def _inside(run: OpenRun, value: Any) -> Any:
    """A setting; of a path in the run folder, wherever that was when the run began, only the part in it."""
    _, separator, path = value.partition(f"/{run.name}/") if isinstance(value, str) else ("", "", "")
    return f"(run folder)/{path}" if separator else value


def _names(metrics: Metrics) -> dict[str, dict[str, Any]]:
    """Every metric with what it means, its last value in each phase that has it, and whether a phase has several values."""
    by_name: dict[str, dict[str, float]] = {}
    varying: set[str] = set()
    for line in metrics.lines:
        for name, value in line.items():
            if name not in ("type", "step") and is_number(value):
                last = by_name.setdefault(name, {})
                if last.get(line["type"], value) != value:
                    varying.add(name)
                last[line["type"]] = value
    return {
        name: {"explanation": explain_metric(name), "last": last, "varies": name in varying}
        for name, last in by_name.items()
    }


def _checkpoints(run_dir: Path) -> list[dict[str, Any]]:
    checkpoints = []
    for path in sorted((run_dir / CHECKPOINTS).glob("step_*")):
        broken = fault(path)
        reward = None if broken else validation_reward(path)
        checkpoints.append(
            {
                "step": _whole(path.name.removeprefix("step_")),
                "path": str(path),
                "validation_reward": reward if reward is not None and math.isfinite(reward) else None,
                "exists": broken is None,
            }
        )
    return checkpoints


def _log_files(run_dir: Path) -> Mapping[str, Path]:
    """The log files by name; no links, which could lead out of the folder."""
    try:
        inside = sorted(run_dir.iterdir(), key=lambda path: (path.name != LOG, path))
    except OSError:
        return {}
    return {
        path.name: path
        for path in inside
        if (path.suffix in _LOGS or path.name in _RECORDS) and path.is_file() and not path.is_symlink()
    }


def _real(value: Any) -> float | None:
    return value if is_number(value) else None


def _whole(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
