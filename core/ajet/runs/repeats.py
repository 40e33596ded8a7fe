"""Does an agent do the same again after the same answers? An episode runs again and replays all of them, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ajet.rollout.episode import Episode, Fork
from ajet.runs.runtime import Runtime, training_policy


async def repeats(runtime: Runtime, episodes: Sequence[Episode]) -> str | None:
    """What is different when the first episode that did not fail runs again: empty if nothing is; None if all failed."""
    first = next((e for e in episodes if e.failure is None and e.record.calls), None)
    if first is None:
        return None
    whole = Fork(first.id, len(first.record.calls), first.record)
    plan = replace(first.plan, id=f"{first.id}/again", fork=whole)
    again = await runtime.runner(training_policy(runtime.job)).run(plan, 0)
    return again.error
