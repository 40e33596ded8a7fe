"""The folder of an experiment: ``checkpoints/PROJECT/NAME``, relative to the working directory. A file of Trinity-RFT may name
another root, and a group of experiments."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ajet import AjetError, ConfigError
from ajet_agentscope.layout import RUN

CHECKPOINTS = "checkpoints"
PROJECT = "AgentScope"


def experiment_folder(
    project: str | None, name: str | None, resume: bool, *, root: str = CHECKPOINTS, group: str = ""
) -> Path:
    """The folder of a new experiment or, with ``resume``, of one that may exist. Raises ConfigError for a name that is not that
    of a folder, and for an experiment that exists."""
    for argument, given in (("project_name", project), ("experiment_name", name)):
        if given is not None and (given != Path(given).name or given in ("", "..")):
            raise ConfigError(
                f"{argument}: {given!r} becomes the name of a folder; leave out slashes, and do not leave it empty."
            )
    if resume and name is None:
        raise ConfigError("resume=True: give the experiment_name of the experiment to go on with.")
    above = Path.cwd() / Path(root).expanduser() / (project or PROJECT) / group
    folder = above / (name or f"Experiment-{time.strftime('%Y%m%d%H%M%S')}")
    number = 1
    while name is None and folder.exists():  # of the same second
        folder, number = above / f"{folder.name.partition('_')[0]}_{number}", number + 1
    if folder.exists() and not resume:
        raise ConfigError(
            f"experiment_name: {folder} already exists. Pass resume=True to go on with it, or choose another name."
        )
    return folder


@contextmanager
def removed_if_nothing_runs(folder: Path) -> Iterator[None]:
    """A block that makes the folder of an experiment. If it fails before the first episode has ended, the folder is removed,
    with those above it that the block has made."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    except AjetError:
        # The link leads to the run, too, where a job file names its folder.
        journals = [*folder.glob("runs/*/episodes.jsonl"), *folder.glob(f"{RUN}/episodes.jsonl")]
        ran = any(file.stat().st_size for file in journals)
        if made and not ran and folder.is_dir():
            shutil.rmtree(folder)
            for above in made[1:]:
                if any(above.iterdir()):
                    break
                above.rmdir()
        raise


def run_to_resume(folder: Path) -> Path | None:
    """The run folder of an experiment; None if it has none yet."""
    run = folder / RUN
    return run.resolve() if (run / "job.yaml").is_file() else None
