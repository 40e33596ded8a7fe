"""The checkpoint folder of AgentScope's tuner, as links into a run folder."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from ajet import Logger
from ajet.interfaces.events import RunStart
from ajet.interfaces.logger import Metrics

RUN = "run"
"""The link to the run folder."""


class Layout(Logger):
    """Keeps the checkpoint folder of AgentScope's tuner up to date: ``run`` (the run folder), ``monitor/tensorboard`` and
    ``global_step_N``. All of them are links, so nothing is stored twice."""

    name = "agentscope_layout"
    folder: Path = Field(description="The folder of the experiment.")

    def run_start(self, event: RunStart) -> None:
        """Link the run folder, which exists from now on."""
        _link(self.folder / RUN, event.run_dir)
        self._link_what_is_there()

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        """Link what has been written meanwhile."""
        self._link_what_is_there()

    def close(self) -> None:
        """Link the last checkpoint."""
        self._link_what_is_there()

    def _link_what_is_there(self) -> None:
        curves = self.folder / RUN / "tensorboard"
        if curves.is_dir():
            _link(self.folder / "monitor" / "tensorboard", curves)
        kept = {
            f"global_step_{int(path.name.removeprefix('step_'))}": path
            for path in (self.folder / RUN / "checkpoints").glob("step_*")
        }
        for link in self.folder.glob("global_step_*"):
            if link.name not in kept:
                link.unlink()
        for name, path in kept.items():
            _link(self.folder / name, path)


def _link(link: Path, target: Path) -> None:
    """Make a relative link, so that the folder can be moved as a whole."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()))
