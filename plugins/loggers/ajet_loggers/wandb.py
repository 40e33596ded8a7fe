"""A run in Weights & Biases."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ajet.interfaces.events import RunStart
from ajet.interfaces.logger import Metrics
from ajet_loggers.episodes import COLUMNS, Row
from ajet_loggers.tool import Destination, Tool, keep_id, known_id

LOGIN_SECONDS = 10
"""How long wandb may ask for a key in a terminal, where a run shows its progress."""


class WandB(Tool):
    """Logs the run to Weights & Biases: configuration, metrics, sampled episodes, checkpoints.

    Log in before with ``wandb login``, or set ``WANDB_API_KEY``. With ``mode: offline`` nothing is sent; ``wandb sync`` sends
    it later.
    """

    name = "wandb"
    package = "wandb"

    project: str = Field("AgentJet", min_length=1, description="Project at Weights & Biases.")
    entity: str | None = Field(None, description="User or team; default: that of the account.")
    group: str | None = Field(None, description="Group of runs to which the run belongs.")
    mode: Literal["online", "offline"] | None = Field(
        None, description="online, or offline: write to the run folder only; default: what WANDB_MODE says."
    )

    def where(self) -> str:
        """See `Tool.where`."""
        return "Weights & Biases"

    def connect(self, event: RunStart) -> Destination:
        """See `Tool.connect`."""
        import wandb

        known = known_id(event.run_dir, self.name)
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group,
            tags=event.tags,
            mode=self.mode,
            id=known or uuid.uuid4().hex[:12],
            name=event.name,
            resume="allow",
            reinit="create_new",
            dir=str(event.run_dir),
            config=dict(event.config),
            settings=wandb.Settings(silent=True, console="off", login_timeout=LOGIN_SECONDS),
        )
        keep_id(event.run_dir, self.name, run.id)
        # A resumed run repeats steps after its checkpoint, which wandb's own step counter would refuse.
        run.define_metric("step")
        run.define_metric("*", step_metric="step")
        return _WandBRun(run, self.upload_checkpoints)


class _WandBRun:
    """See `Destination`."""

    def __init__(self, run: Any, upload: bool) -> None:
        self._run, self._upload = run, upload

    def log(self, step: int, metrics: Metrics) -> None:
        self._run.log({**metrics, "step": step})

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        from wandb import Table

        table = Table(columns=list(COLUMNS), data=list(rows), allow_mixed_types=True)
        self._run.log({f"episodes/{phase}": table, "step": step})

    def checkpoint(self, step: int, path: Path) -> None:
        from wandb import Artifact

        artifact = Artifact(f"checkpoint-{self._run.id}", "model", metadata={"step": step, "path": str(path)})
        if self._upload:
            artifact.add_dir(str(path))
        else:
            artifact.add_reference(path.as_uri(), checksum=False)
        self._run.log_artifact(artifact, aliases=["latest", f"step-{step}"])

    def end(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
