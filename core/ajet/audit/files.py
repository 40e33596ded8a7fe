"""The run folder: its settings, the steps that its weights contain, and a hash of each file that was read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ajet.types import AjetError, ConfigError


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
        found, self.resumed_from = self._metrics()
        self.metrics = {line["step"]: line for line in found if line["type"] == "train"}
        """The metrics of each training step that was not done again."""
        if not self.metrics:
            raise ConfigError(f"{path}", "has trained no step, so there is nothing to audit.")
        if not self.setting("run.record_batches"):
            raise ConfigError(
                f"{path}", "does not say what it trained: its job has run.record_batches: false, or is older."
            )
        saved = [int(p.name[5:]) for p in path.glob("checkpoints/step_*") if (p / "ajet.json").is_file()]
        self.final = max(saved, default=max(self.metrics))
        """The last step that the newest weights contain."""
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
            data = (self.path / name).read_bytes()
        except OSError as error:
            raise AjetError(f"{self.path / name}: cannot be read: {error.strerror}.") from None
        self.hashes[name] = hashlib.sha256(data).hexdigest()
        return data

    def lines(self, name: str) -> Iterator[tuple[int, bytes]]:
        """The place and the bytes of each line of a file, whose hash is kept. A last line that a kill left is skipped and
        named."""
        digest, place = hashlib.sha256(), 0
        with (self.path / name).open("rb") as file:
            for raw in file:
                digest.update(raw)
                if raw.endswith(b"\n"):
                    yield place, raw
                else:
                    self.faults.append(f"{name}: its last line is cut off")
                place += len(raw)
        self.hashes[name] = digest.hexdigest()

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
