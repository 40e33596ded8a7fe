"""`train.reference` in verl's workers: their reference model is another one than the initial model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from omegaconf import OmegaConf, open_dict
from verl.trainer.ppo.utils import Role
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.engine_workers import TrainingWorker

LORA = ("lora_rank", "lora_adapter_path")
"""Keys of a model with an adapter, from which verl concludes that the model below it is the reference."""


class Reference:
    """A mixin before a trainer of verl. Without ``ajet.reference`` in the configuration, it changes nothing."""

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
        found: str | None = self.config.ajet.get("reference")
        return found

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
