"""What `ajet check` says: whether the journal has what the judge needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ajet import Judge
from ajet.interfaces.progress import current_progress
from ajet.reports.folder import read_run
from ajet.rollout.settings import RolloutSettings
from ajet_rejudge.judging import Judged, Judging, judged_steps


def judged_again(judge: Judge, run_dir: Path) -> str:
    """In words whether the episodes of a check can be judged anew, by asking the job's judge about them again."""
    run = read_run(run_dir)
    if run.job.get("judge") is None:
        return "yes, by a judge that reads their responses and messages"
    told: list[Judged] = []

    def ended(step: Sequence[Judged]) -> None:
        told.extend(each for each in step if each.has_output)

    settings = RolloutSettings(**run.job["rollout"])
    judged_steps(Judging(run, judge, settings, False, current_progress().say), ended)
    if not told:
        return "not known: no episode came to its end"
    if unknown := Counter(each.unknown for each in told if each.unknown):
        why, count = unknown.most_common(1)[0]
        return f"no: {count} of {len(told)} episodes could not, as {why}"
    if changed := sum(each.changed for each in told):
        return f"yes, but the judge says something else of {changed} of {len(told)} episodes when it is asked again"
    return "yes"
