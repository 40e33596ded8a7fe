"""A run in Trackio, on this machine, on a Trackio server or in a Hugging Face Space."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet.interfaces.events import RunStart
from ajet.interfaces.logger import Metrics
from ajet_loggers.episodes import COLUMNS, Row
from ajet_loggers.tool import Destination, Tool, keep_id, known_id


class Trackio(Tool):
    """Logs the run to Trackio: configuration, metrics, sampled episodes, checkpoints. View it with ``trackio show``.

    By default everything stays on this machine, in Trackio's own folder (``TRACKIO_DIR``).
    """

    name = "trackio"
    package = "trackio"

    project: str = Field("AgentJet", min_length=1, description="Project in Trackio.")
    group: str | None = Field(None, description="Group of runs to which the run belongs.")
    space_id: str | None = Field(None, description="Hugging Face Space to log to, as user/space.")
    server_url: str | None = Field(None, description="Address of a Trackio server to log to.")

    def where(self) -> str:
        """See `Tool.where`."""
        return self.space_id or self.server_url or f"Trackio's project {self.project}"

    def connect(self, event: RunStart) -> Destination:
        """See `Tool.connect`."""
        import trackio

        known = known_id(event.run_dir, self.name)
        # Trackio continues runs by their names, and a folder of the same name may exist elsewhere.
        name = known or f"{event.name}-{uuid.uuid4().hex[:6]}"
        run = trackio.init(
            project=self.project,
            name=name,
            group=self.group,
            space_id=self.space_id,
            server_url=self.server_url,
            config=dict(event.config),
            resume="allow",
            embed=False,
        )
        keep_id(event.run_dir, self.name, name)
        return _TrackioRun(run, self.upload_checkpoints)


class _TrackioRun:
    """See `Destination`."""

    def __init__(self, run: Any, upload: bool) -> None:
        self._run, self._upload = run, upload

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log(dict(metrics), step=step)

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        from trackio import Table

        self._run.log({f"episodes/{phase}": Table(columns=list(COLUMNS), data=list(rows))}, step=step)

    def checkpoint(self, step: int, path: Path) -> None:
        from trackio import Artifact

        artifact = Artifact(
            f"checkpoint-{self._run.name}", "model", metadata={"step": step, "path": str(path)}
        )
        if self._upload:
            artifact.add_dir(path)
        else:
            artifact.add_reference(path.as_uri(), checksum=False)
        self._run.log_artifact(artifact, aliases=[f"step-{step}"])

    def end(self, failed: bool) -> None:
        self._run.finish()
