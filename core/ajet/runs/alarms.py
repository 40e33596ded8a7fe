"""The alarms of a job, and those of a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.interfaces.base import by_type
from ajet.job.job import Job
from ajet.learning.alarms import Alarm, Alarms
from ajet.rollout.recorder import METRICS, live_lines


def alarms_of(job: Job, run_dir: Path) -> Alarms:
    """The alarms of a run that begins, or goes on after what its folder has."""
    config = job.config
    shuffled = config.task is None or config.task.selector.type == "shuffle"
    alarms = Alarms.of(config.train, shuffled=shuffled, stop_on=config.run.stop_on)
    alarms.replay(live_lines(run_dir / METRICS))
    return alarms


def said_of(alarms: Iterable[Alarm]) -> str:
    """What a run folder says of the alarms of a run that has finished; "" without any."""
    return "; ".join(f"alarm {alarm.name} at step {alarm.step}: {alarm.what}" for alarm in alarms)


def recorded_alarms(job: Mapping[str, Any], metrics: list[Mapping[str, Any]]) -> list[Alarm]:
    """The alarms of a run folder, the first one first; ``job`` is its resolved job."""
    train = job.get("train") or {}
    alarms = Alarms(
        shuffled=by_type((job.get("task") or {}).get("selector") or "shuffle").get("type") == "shuffle",
        on_policy=not train.get("asynchronous"),
        corrected=train.get("correction") == "truncated",
    )
    alarms.replay(metrics)
    return sorted(alarms.found.values(), key=lambda alarm: alarm.step)
