"""Metrics as TensorBoard event files in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import PrivateAttr

from ajet import Logger


class TensorBoard(Logger):
    """Writes event files to ``tensorboard/`` in the run folder. View them with ``tensorboard --logdir RUN``."""

    name = "tensorboard"
    _writer: Any = PrivateAttr(None)

    def log(self, run_dir: Path, step: int, metrics: dict[str, float]) -> None:
        """Write every metric as a scalar."""
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(run_dir / "tensorboard"))
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
