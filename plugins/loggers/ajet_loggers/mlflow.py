"""A run in MLflow."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from ajet.interfaces.events import RunStart
from ajet.interfaces.logger import Metrics
from ajet_loggers.episodes import COLUMNS, Row, text
from ajet_loggers.tool import Destination, Tool, flat, keep_id, known_id

AT_ONCE = 100
"""Parameters and metrics of one request; MLflow allows no more parameters."""
LONGEST_PARAM = 500
"""Characters of a parameter; the whole job is the artifact ``job.yaml``."""


class MLflow(Tool):
    """Logs the run to MLflow: parameters, metrics, sampled episodes, checkpoints.

    Sampled episodes are artifacts, one table for each step. A password for the server belongs into the variables
    ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``, or ``MLFLOW_TRACKING_TOKEN``.
    """

    name = "mlflow"
    package = "mlflow"

    tracking_uri: str | None = Field(
        None, description="Address of the tracking server or store; default: what MLFLOW_TRACKING_URI says."
    )
    experiment: str = Field("AgentJet", min_length=1, description="Experiment; created if there is none.")

    def where(self) -> str:
        """See `Tool.where`."""
        return self.tracking_uri or "MLflow"

    def connect(self, event: RunStart) -> Destination:
        """See `Tool.connect`."""
        from mlflow import MlflowClient

        client = MlflowClient(self.tracking_uri)
        run_id = known_id(event.run_dir, self.name)
        if run_id is None:
            existing = client.get_experiment_by_name(self.experiment)
            experiment = existing.experiment_id if existing else client.create_experiment(self.experiment)
            tags = {_name(tag): "true" for tag in event.tags}
            run_id = client.create_run(experiment, run_name=event.name, tags=tags).info.run_id
            keep_id(event.run_dir, self.name, run_id)
        client.update_run(run_id, status="RUNNING")
        run = _MLflowRun(client, run_id, self.upload_checkpoints)
        run.config(event.config)
        return run


class _MLflowRun:
    """See `Destination`."""

    def __init__(self, client: Any, run_id: str, upload: bool) -> None:
        self._client, self._id, self._upload = client, run_id, upload

    def config(self, config: Mapping[str, Any]) -> None:
        """Log the resolved job. MLflow never changes a parameter, so those of an earlier start of the run stay."""
        from mlflow.entities import Param

        known = self._client.get_run(self._id).data.params
        params = {_name(key): _param(value) for key, value in flat(dict(config)).items()}
        new = [Param(key, value) for key, value in params.items() if key not in known]
        for start in range(0, len(new), AT_ONCE):
            self._client.log_batch(self._id, params=new[start : start + AT_ONCE], synchronous=True)
        job = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        self._client.log_text(self._id, job, "job.yaml")

    def log(self, step: int, metrics: Metrics) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        all_of_them = [Metric(_name(name), value, now, step) for name, value in metrics.items()]
        for start in range(0, len(all_of_them), AT_ONCE):
            self._client.log_batch(self._id, metrics=all_of_them[start : start + AT_ONCE], synchronous=True)

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        table = {"columns": list(COLUMNS), "data": list(rows)}  # the form of `MlflowClient.log_table`
        self._client.log_text(self._id, json.dumps(table), f"episodes/{phase}/step_{step:06d}.json")

    def checkpoint(self, step: int, path: Path) -> None:
        self._client.set_tag(self._id, "ajet.checkpoint", str(path))
        self._client.set_tag(self._id, "ajet.checkpoint_step", step)
        if self._upload:
            self._client.log_artifacts(self._id, str(path), f"checkpoints/{path.name}")

    def end(self, failed: bool) -> None:
        self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")


def _name(key: str) -> str:
    """A name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", key)[:250]


def _param(value: Any) -> str:
    return text(value)[:LONGEST_PARAM]
