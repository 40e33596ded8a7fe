"""The folder through which a run and its learner, a group of Trinity's processes, exchange files.

Each file is written under another name and then renamed, so a reader never sees a part of one. Numbers are Trinity's steps,
counted from 1.

    updates/000007.safetensors   the run writes the rows of a step, and removes the file when the step is reported
    reports/000007.json          the learner writes a step's metrics after its weights
    norms                        our optimizer adds a line for each step that it takes: the gradient's norm
    saves/000007.request         the run asks for a checkpoint after a step; the learner answers with 000007.done
    weights/000007.safetensors   the run keeps the weights after a step, which Trinity removes at the next one
    ready                        the learner has loaded its weights and waits for the first step
    checkpoints/ajet/run         what Trinity calls checkpoint_job_dir
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

PROJECT, NAME = "ajet", "run"
"""What Trinity calls the run, below the root of its checkpoints."""


@dataclass(frozen=True, slots=True)
class Spool:
    """Names of the files in a folder."""

    folder: Path

    def create(self) -> None:
        """Make the subfolders. Raises OSError."""
        for name in ("updates", "reports", "saves", "weights"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    @property
    def config(self) -> Path:
        """Trinity's configuration."""
        return self.folder / "config.yaml"

    @property
    def log(self) -> Path:
        """What Trinity's processes print."""
        return self.folder / "learner.log"

    @property
    def ready(self) -> Path:
        return self.folder / "ready"

    @property
    def norms(self) -> Path:
        return self.folder / "norms"

    @property
    def root(self) -> Path:
        """Trinity's ``checkpoint_root_dir``."""
        return self.folder / "checkpoints"

    @property
    def checkpoints(self) -> Path:
        """Trinity's ``checkpoint_job_dir``."""
        return self.root / PROJECT / NAME

    def actor(self, step: int) -> Path:
        """The folder of a step's weights, and of its checkpoint if there is one."""
        return self.checkpoints / f"global_step_{step}" / "actor"

    def weights(self, step: int) -> Path:
        """The weights after a step, by the names of the model's checkpoint."""
        return self.actor(step) / "model.safetensors"

    def kept(self, step: int) -> Path:
        """The run's own copy of those weights."""
        return self.folder / "weights" / f"{step:06d}.safetensors"

    def update(self, step: int) -> Path:
        return self.folder / "updates" / f"{step:06d}.safetensors"

    def report(self, step: int) -> Path:
        return self.folder / "reports" / f"{step:06d}.json"

    def save_request(self, step: int) -> Path:
        return self.folder / "saves" / f"{step:06d}.request"

    def saved(self, step: int) -> Path:
        return self.folder / "saves" / f"{step:06d}.done"


MEASURE = "measure_"


def measure(name: str) -> str:
    """How a number that an algorithm measures is called on its way through verl, which would take the least or the largest of
    numbers whose names contain "min" or "max"."""
    return MEASURE + name.encode().hex()


def measured(name: str) -> str | None:
    """What `measure` was given; None for other names."""
    return bytes.fromhex(name.removeprefix(MEASURE)).decode() if name.startswith(MEASURE) else None


def link(source: str | Path, target: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no links. Raises OSError."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def write(path: Path, data: bytes) -> None:
    """Write a whole file, visible only once it is complete. Raises OSError."""
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(data)
    os.replace(partial, path)
