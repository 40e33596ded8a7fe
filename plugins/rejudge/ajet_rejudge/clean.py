"""A run folder with which training goes on from before the first wrong update, under the corrected judge.

`ajet run --resume` finds there what a run would have left that was interrupted in that step: the checkpoint before it, and the
step's episodes, which that checkpoint sampled. They have the new verdicts, so the step takes them instead of running them again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ajet import ConfigError
from ajet.interfaces.helpers import write_whole
from ajet.job.objects import OBJECT
from ajet.reports.folder import RecordedRun
from ajet.rollout.batch_record import BATCHES, batch_file
from ajet.rollout.checkpoints import CHECKPOINTS, checkpoints, step_of
from ajet.rollout.image_folder import IMAGES
from ajet.rollout.recorder import JOURNAL, METRICS, live_lines
from ajet.runs.run_dir import TOKENIZER
from ajet.utils.files import writing
from ajet_rejudge.judging import Judged
from ajet_rejudge.recorded import JudgeVerdict

PARENT = "parent.json"
_FILES = ("settings.json", "versions.json", "tasks.json")
_PASS_RATES = "pass_rates.jsonl"


def check(folder: Path, judge: Mapping[str, Any]) -> None:
    """Raise ConfigError if the folder is there, or if no job file could name the judge."""
    if folder.exists():
        raise ConfigError(f"clean= {folder}", "already exists; name a new folder.")
    if str(judge.get("type")).startswith(OBJECT):
        raise ConfigError(
            "judge=", "cannot be imported by a name, so no run could go on with it. Put it into a module."
        )


def last_clean(run_dir: Path, wrong: int) -> Path | None:
    """The last checkpoint before a step's update; None if there is none."""
    return next((path for path in reversed(checkpoints(run_dir)) if step_of(path) < wrong), None)


def begin(
    folder: Path, run: RecordedRun, judge: Mapping[str, Any], judged: Sequence[Judged], wrong: int
) -> int:
    """Write the folder; ``wrong`` is the step with the first wrong update. Returns the step after which training goes on. Raises
    AjetError."""
    checkpoint = last_clean(run.dir, wrong)
    step = step_of(checkpoint)
    lines = list(_episodes(run, judged, step))
    with writing(folder):
        folder.mkdir(parents=True)
        for name in (*_FILES, TOKENIZER, IMAGES):
            _copy(run.dir / name, folder / name)
        if checkpoint:
            _copy(checkpoint, folder / CHECKPOINTS / checkpoint.name)
        (folder / BATCHES).mkdir()
        for number in range(1, step + 1):
            _copy(batch_file(run.dir, number), batch_file(folder, number))
        _write_lines(folder / JOURNAL, lines)
        for name in (METRICS, _PASS_RATES):
            if kept := [line for line in live_lines(run.dir / name) if line["step"] <= step]:
                _write_lines(folder / name, kept)
        told = {"run": str(run.dir.resolve()), "after_step": step, "judge": judge}
        write_whole(folder / PARENT, json.dumps(told))
        # Last, as it is what makes the folder one that can be resumed.
        write_whole(folder / "job.yaml", yaml.safe_dump({**run.job, "judge": dict(judge)}, sort_keys=False))
    return step


def _episodes(run: RecordedRun, judged: Sequence[Judged], step: int) -> list[dict[str, Any]]:
    """The lines of the episodes up to a step, as the weights have learned from them, and those of the next one that have a new
    verdict."""
    lines = []
    for each in judged:
        entry = each.entry
        if entry.step <= step:
            lines.append(run.line(entry))
        elif entry.step == step + 1 and entry.phase == "train" and each.new is not None:
            lines.append(_rewritten(run.line(entry), each.new, each.episode.feedback))
    return lines


def _rewritten(line: dict[str, Any], new: JudgeVerdict, feedback: str) -> dict[str, Any]:
    """A line of the journal with a new verdict."""
    line = {name: value for name, value in line.items() if name not in ("call_rewards", "feedback")}
    verdict = {"reward": new.reward, "rewards": new.rewards, "is_success": new.is_success}
    more = {"call_rewards": new.call_rewards, "feedback": feedback}
    return {**line, "failure": None, "error": "", **verdict, **{k: v for k, v in more.items() if v}}


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a folder, if it is there; links are not followed."""
    if source.is_symlink() or not source.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy(source, target)


def _write_lines(path: Path, lines: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
