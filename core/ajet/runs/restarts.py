"""Runs a job on its backbone, and resumes it after a failure of the machine."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

from ajet.interfaces.backbone import MachineFailed, RunResult
from ajet.job.job import Job
from ajet.rollout.checkpoints import checkpoints, step_of
from ajet.utils.files import writing

RESTARTS = "restarts.jsonl"
"""File of the run folder with a line for each restart: its number, the step from which it continues, and why."""


def run_job(job: Job) -> RunResult:
    """Run a prepared job to its end. After `MachineFailed`, the run resumes from its last checkpoint, at most
    ``run.restarts`` times in all for its folder. Any other exception ends it."""
    wanted, tasks = job.config.train.batch_size, len(job.tasks)
    if job.backbone.capabilities.trains and tasks < wanted:
        job.progress.say(
            f"warning: train.batch_size is {wanted}, but there {'is only 1 task' if tasks == 1 else f'are only {tasks} tasks'}, so a "
            "step takes some of them several times, as separate groups. Lower it, or add tasks."
        )
    while True:
        try:
            return job.backbone.run(job)
        except MachineFailed as failed:
            run_dir = _restart(job, failed)
        job = replace(job, resume=run_dir)


def _restart(job: Job, failed: MachineFailed) -> Path:
    """Count and announce a restart; returns the run folder. Raises MachineFailed if no restarts are left."""
    run_dir, allowed = failed.run_dir, job.config.run.restarts
    file = run_dir / RESTARTS
    used = len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0
    if used >= allowed:
        if not allowed:
            raise failed
        raise MachineFailed(
            f"{failed} No restart is left: {used} of {allowed} were used (run.restarts).", run_dir
        ) from failed
    step = step_of(next(reversed(checkpoints(run_dir)), None))
    line = {
        "restart": used + 1,
        "after_step": step,
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
        "why": str(failed),
    }
    with writing(file), file.open("a", encoding="utf-8") as written:
        written.write(json.dumps(line, ensure_ascii=False) + "\n")
    where = f"after step {step}" if step else "from the beginning, as there is no checkpoint yet"
    job.progress.say(f"restart {used + 1} of {allowed}, {where}: {failed}")
    return run_dir
