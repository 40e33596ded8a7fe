"""verl's task runner, which is the process of its trainer, and the trainer with what AgentJet adds through methods that verl lets
subclasses override: credit, a lock while it sends weights, servers that die; and here the run folder and another reference model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from omegaconf import OmegaConf, open_dict
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker

from ajet.interfaces.backbone import Metrics
from ajet_verl import lora
from ajet_verl.alignment import received
from ajet_verl.credit import Credit
from ajet_verl.recorder import recorder_of
from ajet_verl.survivors import Survivors, end_servers
from ajet_verl.weight_lock import WeightLock

LOCAL_NAMES = {
    "actor/grad_norm": "grad_norm",
    "actor/lr": "learning_rate",
    "timing_s/gen": "seconds_rollout",
}
"""verl's metrics that the local backbone has under other names."""
LORA = ("lora_rank", "lora_adapter_path")
"""Keys of a model with an adapter, from which verl concludes that the model below it is the reference."""
RECEIVED = "verl.yaml"
"""The file of the run folder with the configuration that verl received."""

# Ray's actor classes cannot be subclassed. Of its modified class, `ray.get_actor` would rename subclasses in the driver, which
# then could not create a second one.
_VerlTaskRunner: Any = TaskRunnerV1.__ray_metadata__.modified_class.__ray_actor_class__


class TaskRunner(_VerlTaskRunner):
    """A Ray actor on the node of `ajet run`; `launch` passes it to verl's `run_ppo`."""

    def run(self, config: Any) -> None:
        """Run the job to its end. Raises verl's exceptions."""
        Path(config.ajet.run_dir, RECEIVED).write_text(received(config), encoding="utf-8")
        register_trainer(config.trainer.v1.trainer_mode)
        if lora.of(config.actor_rollout_ref.model):
            from ajet_verl.lora_server import register

            register()
        try:
            super().run(config)
        finally:
            if self.agent_loop_manager is not None:
                self.agent_loop_manager.close()
            with contextlib.suppress(Exception):  # an earlier error may have ended the run
                end_servers()


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
    renamed: Metrics = {"seconds_update": timing.get("step", 0.0) - timing.get("gen", 0.0)}
    for name, value in metrics.items():
        if name.startswith("validation/"):  # these have a separate line
            continue
        try:
            renamed[LOCAL_NAMES.get(name, name)] = float(value)
        except (TypeError, ValueError):
            continue
    return renamed


class Reference:
    """A mixin before a trainer of verl: `train.reference`, another reference model than the initial one. Without ``ajet.reference`` in
    the configuration, it changes nothing."""

    config: Any
    role_worker_mapping: dict[Any, Any]

    @property
    def ref_in_actor(self) -> bool:
        """Whether the reference is the trained model without its adapter."""
        return self._adapter_is_trained and self._reference is None

    @ref_in_actor.setter
    def ref_in_actor(self, adapter_is_trained: bool) -> None:
        self._adapter_is_trained = adapter_is_trained

    @property
    def _reference(self) -> str | None:
        """Folder or Hugging Face id of the job's reference model."""
        model: str | None = self.config.ajet.get("reference")
        return model

    def _init_resource_pool_mgr(self) -> None:
        if self._reference is None:
            super()._init_resource_pool_mgr()  # type: ignore[misc]
            return
        model = self.config.actor_rollout_ref.model
        with open_dict(model):
            given = {key: model.pop(key, None) for key in LORA}
            super()._init_resource_pool_mgr()  # type: ignore[misc]
            model.update(given)
        for role in {Role.ActorRolloutRef, Role.RefPolicy} & self.role_worker_mapping.keys():
            base = self.role_worker_mapping[role].__ray_metadata__.modified_class.__ray_actor_class__
            self.role_worker_mapping[role] = ray.remote(_with_reference(base, self._reference))


def _with_reference(base: type[Any], path: str) -> type[Any]:
    """The class of workers whose reference model is that at ``path``."""

    class WorkerWithReference(base):
        def __init__(self, config: Any, *args: Any, **options: Any) -> None:
            super().__init__(config, *args, **options)
            self.ref_worker_cls = partial(_reference_worker, _model(config.model, path))

    return WorkerWithReference


def _model(trained: Any, path: str) -> Mapping[str, Any]:
    """verl's keys of the reference model: those of the trained one, without its adapter."""
    keys = OmegaConf.to_container(trained, resolve=True)
    assert isinstance(keys, dict)
    own = {"path": path, "hf_config_path": None, "tokenizer_path": None}
    return {**keys, **own, "lora_rank": 0, "lora_adapter_path": None, "lora": {}}


def _reference_worker(model: Mapping[str, Any], config: Any) -> TrainingWorker:
    """verl's worker of the reference, with this model instead of the trained one."""
    return TrainingWorker(
        replace(config, model_config=omega_conf_to_dataclass(OmegaConf.create(dict(model))))
    )
