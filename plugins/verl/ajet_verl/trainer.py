"""verl's trainer with our run folder, through methods that verl lets subclasses override."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray

from ajet.types import Metrics
from ajet_verl.credit import Credit
from ajet_verl.reference import Reference
from ajet_verl.spec import recorder_of
from ajet_verl.survivors import Survivors
from ajet_verl.weight_lock import WeightLock

LOCAL_NAMES = {
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "timing_s/gen": "seconds_rollout",
}
"""verl's metrics that the local backbone has under other names."""


class RunFolder:
    """A mixin before a trainer of verl, which sends metrics and checkpoints to the recorder."""

    config: Any
    global_steps: int

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)  # type: ignore[misc]
        ray.get(
            recorder_of(self.config).metrics.remote(
                "train", global_steps, _with_local_names(metrics, timing_raw)
            )
        )

    def _validate(self) -> dict[str, Any]:
        metrics: dict[str, Any] = super()._validate()  # type: ignore[misc]
        step = self.global_steps
        if (
            step
            and ray.get(recorder_of(self.config).beats_all.remote(step))
            and not self._saved(step).exists()
        ):
            self._save_checkpoint()
        return metrics

    def _save_checkpoint(self) -> None:
        step = self.global_steps
        super()._save_checkpoint()  # type: ignore[misc]
        staged = Path(self.config.trainer.default_local_dir) / f"global_step_{step}"
        ray.get(recorder_of(self.config).checkpoint.remote(step, str(staged)))

    def _saved(self, step: int) -> Path:
        return Path(self.config.ajet.run_dir) / "checkpoints" / f"step_{step:06d}"


def register_trainer(mode: str) -> None:
    """Replace verl's trainer for a mode by ours, in this process."""
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    base = get_trainer_cls(mode)
    ours = (WeightLock, Survivors, RunFolder, Credit, Reference)
    TRAINER_REGISTRY[mode] = type(f"Ajet{base.__name__}", (*ours, base), {})


def _with_local_names(metrics: dict[str, Any], timing: dict[str, float]) -> Metrics:
    """The numbers among a step's metrics, renamed by `LOCAL_NAMES`."""
    found: Metrics = {"seconds_update": timing.get("step", 0.0) - timing.get("gen", 0.0)}
    for name, value in metrics.items():
        if name.startswith("validation/"):  # these have a separate line
            continue
        try:
            found[LOCAL_NAMES.get(name, name)] = float(value)
        except (TypeError, ValueError):
            continue
    return found
