"""A run in SwanLab."""

from __future__ import annotations

import glob
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ajet.interfaces.events import RunStart
from ajet.interfaces.logger import Metrics
from ajet_loggers.episodes import COLUMNS, Row
from ajet_loggers.tool import Destination, Tool, keep_id, known_id


class SwanLab(Tool):
    """Logs the run to SwanLab: configuration, metrics, sampled episodes, checkpoints.

    Log in before with ``swanlab login``, or set ``SWANLAB_API_KEY``. With ``mode: offline`` nothing is sent; ``swanlab sync``
    sends it later. SwanLab has one run in a process at a time.
    """

    name = "swanlab"
    package = "swanlab"

    project: str = Field(
        "AgentJet",
        max_length=100,
        pattern=r"^[0-9a-zA-Z_\-+.]+$",
        description="Project in SwanLab: letters, digits and any of _-+. in its name.",
    )
    workspace: str | None = Field(None, description="User or organization; default: that of the account.")
    group: str | None = Field(None, description="Group of runs to which the run belongs.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="online, or offline: write to the run folder only; default: what SWANLAB_MODE says."
    )

    def where(self) -> str:
        """See `Tool.where`."""
        return "SwanLab"

    def connect(self, event: RunStart) -> Destination:
        """See `Tool.connect`."""
        import swanlab

        known = known_id(event.run_dir, self.name)
        settings = swanlab.Settings(interactive=False, terminal=swanlab.Settings.Terminal(proxy_type="none"))
        run = swanlab.init(
            project=self.project,
            workspace=self.workspace,
            group=self.group,
            tags=event.tags or None,
            mode=self.mode,
            id=known or uuid.uuid4().hex[:12],
            name=event.name,
            resume="allow",
            log_dir=str(event.run_dir / "swanlog"),
            config=dict(event.config),
            settings=settings,
        )
        keep_id(event.run_dir, self.name, run.id)
        return _SwanLabRun(run, self.upload_checkpoints)


class _SwanLabRun:
    """See `Destination`."""

    def __init__(self, run: Any, upload: bool) -> None:
        self._run, self._upload = run, upload

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        from swanlab import echarts

        table = echarts.Table().add(list(COLUMNS), list(rows))
        self._run.log_echarts(key=f"episodes/{phase}", data=table, step=step)

    def checkpoint(self, step: int, path: Path) -> None:
        self._run.log_text(key="checkpoint", data=str(path), step=step)
        if self._upload:
            # One by one: SwanLab refuses more than a hundred files at once, and its patterns leave out hidden ones.
            for file in sorted(path.rglob("*")):
                if file.is_file():
                    self._run.save(glob.escape(str(file)), base_path=path.parent, policy="now")

    def end(self, failed: bool) -> None:
        if failed:
            self._run.finish(state="crashed", error="the run failed")
        else:
            self._run.finish()
