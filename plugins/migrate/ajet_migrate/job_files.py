"""Files that name other keys than a job's, given to a command in place of a job file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet import ConfigError, Reader
from ajet.job.config import Layers
from ajet.job.layers import job_layers
from ajet.job.parts import build_plugin
from ajet.utils.terminal import tell
from ajet_migrate.earlier.job_file import Translation, section_of
from ajet_trinity_files.files import ONLINE, trinity_file
from ajet_trinity_files.keys import is_trinity


def layers_of(path: Path, values: Mapping[str, Any]) -> Layers | None:
    """The job that a job file of the earlier AgentJet, or explorer.yaml or trainer.yaml of Trinity-RFT, says; its keys without
    effect are printed. None for a file that is none of these. Raises ConfigError that names the command which prints the job of
    another file."""
    if section := section_of(values):
        return _earlier(path, Translation(values, section))
    if not is_trinity(values):
        return None
    if values.get("mode") not in ONLINE:
        raise ConfigError(
            f"{path}: is a configuration of Trinity-RFT. Its job file is printed by: ajet config from-trinity {path}"
        )
    parsed = trinity_file(path)
    assert parsed is not None
    for line in parsed.warnings():
        tell(line)
    return parsed.full_layers()


def _earlier(path: Path, new: Translation) -> Layers:
    layers = Layers()
    layers.add(new.job, str(path), Path.cwd())
    tell(
        f"{path}: is a job file of the earlier AgentJet; `ajet config from-earlier {path}` prints the new one"
    )
    for note in new.notes:
        if ".total_epochs: " not in note:  # they are counted below
            tell(f"{path}: {note}")
    if new.epochs and "steps" not in new.job["train"]:
        job = layers.job()
        try:
            tasks = records(job.task.reader) if job.task else 0
        except ConfigError as error:
            tell(f"{path}: the tasks of its epochs cannot be counted here ({error}) Set train.steps.")
        else:
            layers.set(
                "train.steps", math.ceil(tasks * new.epochs / job.train.batch_size), str(path), Path.cwd()
            )
    return layers


def records(reader: Mapping[str, Any]) -> int:
    """How many tasks a reader reads. Raises ConfigError."""
    built = build_plugin(job_layers(None), Reader, reader, "task.reader")
    return sum(1 for _ in built.tasks())
