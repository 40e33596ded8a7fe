"""A run folder with which training goes on from before the first wrong update, under the corrected judge.

`ajet run --resume` finds there what a run would have left that was interrupted in that step: the checkpoint before it, and the
step's episodes, which that checkpoint sampled. They have the new verdicts, so the step takes them instead of running them again.
So do later steps with theirs, as far as the job trains on what other weights have sampled.

How far other weights are is counted in updates, as in any run. The two runs share the weights up to the first update that differs.
What the old run has sampled after n more updates is, for weights after m more updates, n + m away; so the journal has it under the
version n before the shared one.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ajet import ConfigError
from ajet.interfaces.helpers import write_whole
from ajet.job.objects import OBJECT
from ajet.learning.settings import TrainSettings
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
FARTHEST = 4
"""How many versions away weights may be whose episodes are taken over, if the job does not allow more. Which of them are learned from
is up to the job when it goes on: `train.max_staleness` may be another one then."""


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
    folder: Path,
    run: RecordedRun,
    judge: Mapping[str, Any],
    judged: Sequence[Judged],
    wrong: int,
    train: TrainSettings,
    group_size: int,
) -> int:
    """Write the folder; ``wrong`` is the step with the first wrong update. Returns the step after which training goes on. Raises
    AjetError."""
    checkpoint = last_clean(run.dir, wrong)
    step = step_of(checkpoint)
    taken = _Taken(run, step, train, group_size)
    taken.take(judged)
    lines = [run.line(each.entry) for each in judged if each.entry.step <= step]
    with writing(folder):
        folder.mkdir(parents=True)
        for name in (*_FILES, TOKENIZER, IMAGES):
            _copy(run.dir / name, folder / name)
        if checkpoint:
            _copy(checkpoint, folder / CHECKPOINTS / checkpoint.name)
        (folder / BATCHES).mkdir()
        for number in range(1, step + 1):
            _copy(batch_file(run.dir, number), batch_file(folder, number))
        _write_lines(folder / JOURNAL, [*lines, *taken.lines])
        for name in (METRICS, _PASS_RATES):
            if kept := [line for line in live_lines(run.dir / name) if line["step"] <= step]:
                _write_lines(folder / name, kept)
        told = {"run": str(run.dir.resolve()), "after_step": step, "judge": judge}
        told |= {"shared_version": taken.shared, "verdicts": taken.verdicts}
        write_whole(folder / PARENT, json.dumps(told))
        # Last, as it is what makes the folder one that can be resumed.
        write_whole(folder / "job.yaml", yaml.safe_dump({**run.job, "judge": dict(judge)}, sort_keys=False))
    return step


class _Taken:
    """The episodes after a step that the new run can learn from."""

    def __init__(self, run: RecordedRun, after: int, train: TrainSettings, group_size: int) -> None:
        self._run, self._most_stale = run, max(train.most_stale, FARTHEST)
        self._whole = train.batch_size * group_size if train.dynamic_sampling == 1 else 0
        """Episodes of a step that none is missing of; 0 if that cannot be told."""
        told = {
            line["step"]: line["weight_version"]
            for line in run.metrics
            if line["type"] == "train"
            and isinstance(line.get("weight_version"), int | float)
            and 0 <= line["weight_version"] < 1 << 30
        }
        self._first = after + 1
        self._learning = int(told.get(after, told.get(self._first, self._first) - 1))
        """The version of the weights that learn from the first step."""
        self.shared = self._learning
        """The last version that is the same in both runs."""
        self.lines: list[dict[str, Any]] = []
        """Those of the journal, with the new verdicts."""
        self.verdicts: dict[str, dict[str, Any]] = {}

    def take(self, judged: Sequence[Judged]) -> None:
        """Take what can be learned from, step by step, until a step has nothing."""
        steps: dict[int, list[Judged]] = {}
        for each in judged:
            if each.entry.phase == "train" and each.entry.step >= self._first:
                steps.setdefault(each.entry.step, []).append(each)
        step = self._first
        while members := steps.get(step):
            taken = [line for each in members if (line := self._line(each))]
            if not taken:
                return
            self.lines += taken
            is_same = len(taken) == self._whole and not any(each.changed for each in members)
            if is_same and self.shared == self._learning:
                # The same weights learn from the same tokens with the same rewards: the update is the same.
                self.shared += 1
            step, self._learning = step + 1, self._learning + 1

    def _line(self, each: Judged) -> dict[str, Any] | None:
        """An episode's line for the new journal; None if it cannot be learned from."""
        line = self._run.line(each.entry)
        if each.new is None or "fork" in line:
            return None
        for call in line["calls"]:
            if "tokens" in call:
                versions = np.frombuffer(base64.b64decode(call["tokens"]["versions"]), "<i4")
                versions = np.where(versions > self.shared, 2 * self.shared - versions, versions)
                if (versions < self._learning - self._most_stale).any():
                    return None
                call["tokens"]["versions"] = base64.b64encode(versions.astype("<i4").tobytes()).decode()
        self.verdicts[each.entry.id] = each.new.as_dict()
        return _rewritten(line, each.new, each.episode.feedback) | {"parent": self._run.dir.name}


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
