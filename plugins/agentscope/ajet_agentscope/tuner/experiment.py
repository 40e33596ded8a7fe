"""The folder of an experiment: ``checkpoints/PROJECT/NAME``, relative to the working directory."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from ajet.types import ConfigError
from ajet_agentscope.layout import RUN

CHECKPOINTS = "checkpoints"
PROJECT = "AgentScope"


def experiment_folder(project: str | None, name: str | None, resume: bool) -> Path:
    """The folder of a new experiment or, with ``resume``, of one that may exist. Raises ConfigError for a name that is not that
    of a folder, and for an experiment that exists."""
    for argument, given in (("project_name", project), ("experiment_name", name)):
        if given is not None and (given != Path(given).name or given in ("", "..")):
            raise ConfigError(
                f"{argument}: {given!r} becomes the name of a folder; leave out slashes, and do not leave it empty."
            )
    if resume and name is None:
        raise ConfigError("resume=True: give the experiment_name of the experiment to go on with.")
    root = Path.cwd() / CHECKPOINTS / (project or PROJECT)
    folder = root / (name or f"Experiment-{time.strftime('%Y%m%d%H%M%S')}")
    number = 1
    while name is None and folder.exists():  # of the same second
        folder, number = root / f"{folder.name.partition('_')[0]}_{number}", number + 1
    if folder.exists() and not resume:
        raise ConfigError(
            f"experiment_name: {folder} already exists. Pass resume=True to go on with it, or choose another name."
        )
    return folder


def remove_if_nothing_ran(folder: Path) -> None:
    """Remove the folder of an experiment that failed before its first episode ended, and those above it that are empty then."""
    if not folder.is_dir() or any(file.stat().st_size for file in folder.glob("runs/*/episodes.jsonl")):
        return
    shutil.rmtree(folder)
    for above in (folder.parent, folder.parent.parent):
        if not any(above.iterdir()):
            above.rmdir()


def run_to_resume(folder: Path) -> Path | None:
    """The run folder of an experiment; None if it has none yet."""
    run = folder / RUN
    return run.resolve() if (run / "job.yaml").is_file() else None
