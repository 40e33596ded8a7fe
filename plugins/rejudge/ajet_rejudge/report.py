"""What `ajet rejudge` and `ajet bisect` print, and the file that the first writes beside the journal."""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from ajet.utils.files import writing
from ajet.utils.terminal import readable, table
from ajet_rejudge.bisecting import Bisection, model_name
from ajet_rejudge.changes import Changes, StepChange
from ajet_rejudge.clean import last_clean
from ajet_rejudge.judging import Judged

FILE = "rejudged.jsonl"
SHOWN = 60
"""Characters of a response, and the most rows of a table of steps."""
NAMED = 5
"""Tasks, and episodes that cannot be judged again, that are named."""


def write(run_dir: Path, lines: Iterable[str]) -> None:
    """Write the file, in the place of an earlier one. Raises AjetError."""
    path = run_dir / FILE
    with writing(path):
        # A name that cannot be foreseen, so that no link in the folder leads the writing elsewhere.
        descriptor, name = tempfile.mkstemp(prefix=f".{FILE}.", dir=run_dir)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.writelines(lines)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise


def line_of(each: Judged, push: tuple[float, float] | None) -> str:
    """An episode's line of the file."""
    entry = each.entry
    line: dict[str, Any] = {
        "type": "episode",
        "id": entry.id,
        "phase": entry.phase,
        "step": entry.step,
        "task": entry.task,
    }
    line["recorded"] = each.recorded.as_dict() if each.recorded else {"failure": entry.failure}
    if each.unknown:
        line["unknown"] = each.unknown
    elif not each.has_output:
        line["unknown"] = "it failed before there was anything to judge"
    else:
        told = {"failure": each.episode.failure, "error": each.episode.error}
        line["judged"] = each.new.as_dict() if each.new else told
        line["changed"] = each.changed
    if push:
        line["push"] = push
    return json.dumps(line) + "\n"


def page(changes: Changes) -> str:
    """The whole text."""
    parts = [
        _rewards(changes),
        _steps(changes),
        _first_wrong(changes),
        _taught(changes),
        _not_judged(changes),
    ]
    return "\n\n".join(part for part in parts if part)


def _rewards(changes: Changes) -> str:
    up, down = (sum(1 for d in changes.differences if d * sign > 0) for sign in (1, -1))
    lines = [f"{readable(changes.run.name)}: {changes.changed:,} of {changes.episodes:,} verdicts change"]
    if changes.differences:
        sizes = fmean(abs(d) for d in changes.differences)
        lines.append(f"rewards: {down:,} fall and {up:,} rise, by {sizes:.3g} on average")
    if changes.gained:
        lines.append(f"{changes.gained:,} episodes whose judge had failed have a reward now")
    if changes.failing:
        causes = ", ".join(f"{readable(cause)} {count:,}" for cause, count in changes.failing.most_common(3))
        lines.append(f"the new judge fails on {changes.failing.total():,} episodes ({causes})")
    tasks = sorted((task for task in changes.tasks.items() if task[1][0]), key=lambda task: -task[1][0])
    if tasks:
        some = ", ".join(f"{readable(name)} ({n:,} of {of:,})" for name, (n, of) in tasks[:NAMED])
        more = f" and {len(tasks) - NAMED:,} more" if len(tasks) > NAMED else ""
        lines.append(f"{len(tasks):,} of {len(changes.tasks):,} tasks: {some}{more}")
    return "\n".join(lines)


def _steps(changes: Changes) -> str:
    rows: list[tuple[str, ...]] = [("phase", "step", "recorded", "true", "wrong sign", "missed")]
    rows += [_step(each) for each in changes.steps]
    if len(rows) > SHOWN:
        step = -(-len(rows) // SHOWN)
        rows = [rows[0], *rows[1::step]]
    return table(rows)


def _step(each: StepChange) -> tuple[str, ...]:
    means = ["-" if mean is None else f"{mean:.3f}" for mean in (each.recorded, each.true)]
    if each.credit is None:
        return (each.phase, str(each.step), *means)
    missed = f"{each.credit.missed:,} tokens" if each.credit.missed else "-"
    return each.phase, str(each.step), *means, f"{each.credit.share:.1%}", missed


def _first_wrong(changes: Changes) -> str:
    if not any(each.credit for each in changes.steps):
        return "\n".join(changes.notes)
    first = changes.first_wrong
    if first is None:
        return "\n".join(["no trained token had an advantage of the wrong sign", *changes.notes])
    assert first.credit
    wrong, of = first.credit.wrong, first.credit.tokens
    lines = [
        f"first wrong update: step {first.step}, with the wrong sign in {wrong:,} of {of:,} trained tokens"
    ]
    before = last_clean(changes.run, first.step)
    lines.append(f"last checkpoint before it: {before or 'none, only the model that training began with'}")
    if changes.clean:
        folder, step = changes.clean
        lines.append(f"to go on after step {step}: ajet run --resume {shlex.quote(str(folder))}")
    return "\n".join([*lines, *changes.notes])


def _taught(changes: Changes) -> str:
    if not changes.taught:
        return ""
    rows = [("what it was taught", "reward", "push", "answer")]
    for each in changes.taught:
        rewards = " -> ".join("none" if r is None else f"{r:g}" for r in (each.recorded, each.true))
        push = " -> ".join(f"{p:+.3f}" for p in each.push)
        said = each.response if isinstance(each.response, str) else json.dumps(each.response)
        said = " ".join(said.split())
        rows.append(
            (readable(each.id), rewards, push, readable(said if len(said) <= SHOWN else f"{said[:SHOWN]}…"))
        )
    return table(rows)


def _not_judged(changes: Changes) -> str:
    lines = [
        f"not judged again: {len(ids):,}, as {readable(why)}; such as {readable(', '.join(ids[:NAMED]))}"
        for why, ids in changes.unknown.items()
    ]
    if changes.failed:
        lines.append(f"not judged again: {changes.failed:,}, which failed before there was anything to judge")
    return "\n".join(lines)


def bisection_page(found: Bisection) -> str:
    """The whole text of `ajet bisect`."""
    rows = [("model", "fail", "episodes", "verdict")]
    for each in sorted(found.evaluated, key=lambda each: each.step):
        verdict = "fails" if each.shows else "passes"
        rows.append((model_name(each.step), str(each.shown), str(each.episodes), verdict))
    lines = [f"{readable(found.run.name)}: {readable(found.task)} {readable(found.check)}"]
    if found.steps:
        clean, shown = found.steps
        between = (
            f"{clean + 1}"
            if shown == clean + 1
            else f"{clean + 1} to {shown}, between which no checkpoint is"
        )
        lines.append(f"taught by {'step' if shown == clean + 1 else 'the steps'} {between}")
    rates = found.rates
    told = (
        f"If each model fails in at most {rates.rare:.0%} or at least {rates.often:.0%} of its episodes, a verdict is wrong with a "
        f"probability of at most {rates.error:.0%}."
    )
    parts = ["\n".join([*lines, *found.notes]), table(rows), told, _rewarding(found)]
    parts.append(f"its episodes: {shlex.join(['ajet', 'show', str(found.run_dir)])}")
    return "\n\n".join(part for part in parts if part)


def _rewarding(found: Bisection) -> str:
    if not found.steps or not found.sampled:
        return ""
    if not found.groups:
        return f"none of {found.sampled:,} episodes of these steps was rewarded for it"
    rows = [("rewarded for it", "fail", "episodes", "such as")]
    rows += [
        (readable(each.group), str(each.shown), str(each.episodes), readable(each.rewarded[0]))
        for each in found.groups[:SHOWN]
    ]
    more = len(found.groups) - SHOWN
    return table(rows) + (f"\nand {more:,} more groups" if more > 0 else "")
