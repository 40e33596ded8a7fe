"""Files that name other keys than a job's, given to a command in place of a job file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet.job.config import Layers
from ajet.utils.terminal import tell
from ajet_migrate.earlier.job_file import refuse_earlier
from ajet_trinity_files.files import ONLINE, trinity_file
from ajet_trinity_files.keys import is_trinity


def layers_of(path: Path, values: Mapping[str, Any]) -> Layers | None:
    """The job that explorer.yaml or trainer.yaml of Trinity-RFT says; its keys without effect are printed. None for a file that is
    none of these. Raises ConfigError that names the command which prints the job of another file."""
    refuse_earlier(path, values)
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
