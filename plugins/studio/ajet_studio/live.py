"""Tells the page when the files of a run have grown, as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from ajet.rollout.recorder import JOURNAL, METRICS
from ajet.runs.run_dir import RUNNING
from ajet.runs.run_state import state_of
from ajet_studio.opened import JOB, OpenRun

POLL = 0.5
LEAST = 1.0
"""Seconds between two events."""
HEARTBEAT = 15.0


def state(run: OpenRun) -> str:
    """Sizes and times of the files that a run writes, how much of them the index covers, and whether the run goes on, as a short
    text. Answers that the page shows contain it, so that the page is told of what changes after them, however late it listens."""
    run.index.update()
    # A process that is killed changes no file.
    parts = [f"{run.index.progress():.6f}", state_of(run.dir, 0, 0).name]
    for name in (JOURNAL, METRICS, RUNNING, JOB):
        try:
            stat = (run.dir / name).stat()
            parts.append(f"{stat.st_size:x}-{stat.st_mtime_ns:x}")
        except OSError:
            parts.append("")
    return ".".join(parts)


async def changes(runs: Sequence[OpenRun], seen: list[str], ending: asyncio.Event) -> AsyncIterator[str]:
    """An event ``changed`` with the number of episodes and steps whenever the `state` of one of the runs is another one than was
    ``seen``, until ``ending`` is set."""
    quiet = 0.0
    yield ": listening\n\n"
    while not ending.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(ending.wait(), POLL)
        quiet += POLL
        if quiet >= LEAST and seen != (seen := await asyncio.to_thread(states, runs)):
            yield f"event: changed\ndata: {json.dumps(await asyncio.to_thread(_counts, runs))}\n\n"
            quiet = 0.0
        elif quiet >= HEARTBEAT:
            yield ": still here\n\n"
            quiet = 0.0


def states(runs: Sequence[OpenRun]) -> list[str]:
    """The `state` of each run."""
    return [state(run) for run in runs]


def _counts(runs: Sequence[OpenRun]) -> dict[str, int]:
    return {
        "episodes": sum(run.index.count() for run in runs),
        "steps": sum(len(run.metrics().of("train")) for run in runs),
    }
