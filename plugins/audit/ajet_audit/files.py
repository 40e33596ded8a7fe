"""The run folder: its settings, the steps that its weights contain, and a hash of each file that was read."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet import AjetError, ConfigError

OWN_LOOP = "object:the tasks of each rollout"
"""The reader of a job whose loop is a program of the user's."""


class Folder:
    """A run folder that trains. Raises ConfigError if it does not, or does not say what it trained."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hashes: dict[str, str] = {}
        """SHA-256 of each file that was read, by its path in the folder."""
        self.faults: list[str] = []
        settings = path / "settings.json"
        if not settings.is_file():
            raise ConfigError(
                f"{path}", "is not a run folder: it has no settings.json. Name a run that trains."
            )
        self.settings: Mapping[str, Any] = json.loads(self.read("settings.json"))
        lines, self.resumed_from = self._metrics()
        self.metrics = {line["step"]: line for line in lines if line["type"] == "train"}
        """The metrics of each training step that was not done again."""
        if not self.metrics:
            raise ConfigError(f"{path}", "has trained no step, so there is nothing to audit.")
        if not self.setting("run.record_batches"):
            raise ConfigError(
                f"{path}", "does not say what it trained: its job has run.record_batches: false, or is older."
            )
        for step, count in Counter(line["step"] for line in lines if line["type"] == "train").items():
            if count > 1:
                self.faults.append(f"metrics.jsonl: it has {count} lines of step {step}")
        self.validations = [line for line in lines if line["type"] != "train"]
        saved = {int(p.name[5:]): p for p in path.glob("checkpoints/step_*") if (p / "ajet.json").is_file()}
        self.last = max(line["step"] for line in lines)
        """The last step of which there are metrics."""
        self.final = max(saved, default=max(self.metrics))
        """The last step that the newest weights contain."""
        for step, checkpoint in sorted(saved.items()):
            self._checkpoint(step, checkpoint)
        self.has_finished = self._has_finished()
        self.since = max(self.resumed_from, default=0)
        """The step from which the settings hold: those of a run that is resumed may differ from what they were before."""
        self.is_loop = self.setting("task.reader.type") != OWN_LOOP
        """Whether the job decided how many episodes a step has, and not a program of the user's."""
        self.steps = range(1, self.final + 1)

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a key of the job, such as ``train.kl``."""
        value: Any = self.settings
        for name in key.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        return default if value is None else value

    def read(self, name: str) -> bytes:
        """The bytes of a file, whose hash is kept. Raises AjetError."""
        try:
            data = self._plain(name).read_bytes()
        except OSError as error:
            raise AjetError(f"{self.path / name}: cannot be read: {error.strerror}.") from None
        self.hashes[name] = hashlib.sha256(data).hexdigest()
        return data

    def _plain(self, name: str) -> Path:
        """The path of a file. Raises AjetError for a pipe or a device, which might never end."""
        if (path := self.path / name).exists() and not path.is_file():
            raise AjetError(f"{path}: is not a plain file.")
        return path

    def lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """The place and the bytes of each line of a file, whose hash is kept. A last line that a kill left is skipped and
        named."""
        digest, place = hashlib.sha256(), 0
        with self._plain(name).open("rb") as file:
            for raw in file:
                digest.update(raw)
                if raw.endswith(b"\n"):
                    yield place, raw
                else:
                    self.faults.append(f"{name}: its last line is cut off")
                place += len(raw)
        self.hashes[name] = digest.hexdigest()

    def rate_at(self, step: int) -> float:
        """The learning rate of a step by the schedule."""
        rate, steps = self.setting("train.learning_rate", 1e-5), self.setting("train.steps", 100)
        warm, schedule = self.setting("train.warmup_steps", 0), self.setting("train.schedule", "constant")
        if step < warm:
            return float(rate * step / warm)
        begin = max(warm, 1)
        passed = min((step - begin) / max(steps - begin, 1), 1.0)
        least = self.setting("train.final_share", 0.1)
        height = {
            "constant": 1.0,
            "linear": least + (1 - least) * (1 - passed),
            "cosine": least + (1 - least) * (1 + math.cos(math.pi * passed)) / 2,
        }
        return float(rate * height[schedule])

    def _checkpoint(self, step: int, path: Path) -> None:
        """Compare a checkpoint with what it says of itself; the files of the newest one bit for bit."""
        name = f"checkpoints/{path.name}"
        try:
            state = json.loads(self.read(f"{name}/ajet.json"))
            listed = json.loads(self.read(f"{name}/files.json"))
            if state["step"] != step:
                self.faults.append(f"{name}: its ajet.json is that of step {state['step']}")
            version = self.metrics.get(step, {}).get("weight_version", state["version"])
            if state["version"] != version:
                self.faults.append(
                    f"{name}: its weights are version {state['version']}, but step {step} ended with {version:g}"
                )
            rewards = {line.get("reward") for line in self._of_validation(step)}
            if rewards and state.get("validation_reward", next(iter(rewards))) not in rewards:
                self.faults.append(f"{name}: its validation reward is not that of metrics.jsonl")
            for file, noted in listed.items():
                if fault := _changed(path / file, noted, whole=step == self.final):
                    self.faults.append(f"{name}: {file} {fault}")
        except (AjetError, ValueError, LookupError, TypeError, AttributeError) as error:
            self.faults.append(f"{name}: it is incomplete ({error})")

    def _of_validation(self, step: int) -> list[dict[str, Any]]:
        return [line for line in self.validations if line["step"] == step and line["type"] == "validation"]

    def _has_finished(self) -> bool:
        """Whether the run says that it has finished; compared with its steps."""
        if not (self.path / "ended.json").is_file():
            return False
        try:
            name = json.loads(self.read("ended.json"))["name"]
        except (ValueError, LookupError, TypeError):
            name = None
        if name not in ("finished", "interrupted", "failed"):
            self.faults.append("ended.json: it does not say how the run ended")
        last = max(self.metrics)
        if name == "finished" and self.final < last and self.setting("task.reader.type") != OWN_LOOP:
            self.faults.append(
                f"ended.json says that the run has finished, but its last step, {last}, has no checkpoint"
            )
        return bool(name == "finished")

    def _metrics(self) -> tuple[list[dict[str, Any]], set[int]]:
        """The lines that count, and the steps from which the run was done again."""
        live: list[dict[str, Any]] = []
        again = set()
        for _, raw in self.lines("metrics.jsonl"):
            line = json.loads(raw)
            if line["type"] == "superseded":
                again.add(line["from_step"])
                live = [each for each in live if each["step"] < line["from_step"]]
            else:
                live.append(line)
        return live, again


def _changed(file: Path, noted: Any, *, whole: bool) -> str:
    """How a file of a checkpoint differs from what was noted when it was written; only a ``whole`` comparison reads it."""
    size = noted["size"] if isinstance(noted, Mapping) else noted
    if not file.is_file():
        return "is missing"
    if file.stat().st_size != size:
        return f"has {file.stat().st_size} bytes instead of {size}"
    if whole and isinstance(noted, Mapping):
        checksum = 0
        with file.open("rb") as content:
            while piece := content.read(1 << 22):
                checksum = zlib.crc32(piece, checksum)
        if checksum != noted["crc32"]:
            return "has changed since it was written"
    return ""
