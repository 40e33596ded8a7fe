"""Loggers: a run in TensorBoard, Weights & Biases, MLflow, SwanLab or Trackio, its episodes in any OpenTelemetry collector or as
trajectories in ATIF, its folder in an object store.

Importing this package imports none of them; each is imported when a run begins that logs to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Plugin


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    from ajet_loggers.atif import Atif
    from ajet_loggers.mlflow import MLflow
    from ajet_loggers.otel import OpenTelemetry
    from ajet_loggers.store import Store
    from ajet_loggers.swanlab import SwanLab
    from ajet_loggers.tensorboard import TensorBoard
    from ajet_loggers.trackio import Trackio
    from ajet_loggers.wandb import WandB

    return [Atif, TensorBoard, WandB, MLflow, SwanLab, Trackio, OpenTelemetry, Store]
