"""The engine of verl's FSDP workers with what AgentJet adds to it: an adapter for each target of the job (here), rows computed as
trees, and models that see images. Importing this module registers it; verl imports it in its processes, because
``actor_rollout_ref.model.external_lib`` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_vendor
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

from ajet.backbones import LoraSettings
from ajet_lora.adapters import Adapters, prepare
from ajet_lora.folders import FOLDER, saved_adapters
from ajet_verl.images import VisionTower
from ajet_verl.layout import TREE
from ajet_verl.lora import ADAPTER, ADAPTERS, of
from ajet_verl.trees import Trees


class Lora:
    """A mixin before verl's FSDP engine of language models: one LoRA adapter for each target. Without adapters in the configuration,
    it changes nothing.

    A micro-batch may have rows of several targets. All adapters then take part in it, each on the tokens of its own rows, so all
    ranks always have gradients of the same weights. In an optimizer step, each adapter learns as if it were alone.
    """

    model_config: Any
    optimizer_config: Any
    module: Any
    optimizer: Any
    _adapters: Adapters | None = None

    def _build_lora_module(self, module: Any) -> Any:
        settings, lora = of(self.model_config), self.model_config.lora
        self._trained = [name for name in settings if settings[name].pop("trained")]
        wanted = {name: LoraSettings(**settings[name]) for name in settings}
        saved = saved_adapters(lora["folder"]) if lora["folder"] else {}
        adapters = self._adapters = prepare(module, saved, wanted, lora["seed"])
        assert adapters is not None
        self._by_token = adapters.by_token() if len(wanted) > 1 else None
        if self._by_token is None:
            adapters.activate(adapters.names[0])
        adapters.train(self._trained)
        return adapters.peft

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """See verl's engine."""
        inputs, further = super().prepare_model_inputs(micro_batch)  # type: ignore[misc]
        if self._adapters is not None and self._by_token is not None:
            self._by_token.choose(self.adapters_of(micro_batch, inputs, further))
        return inputs, further

    def adapters_of(
        self, rows: TensorDict, inputs: Mapping[str, Any], further: Mapping[str, Any]
    ) -> torch.Tensor:
        """The adapter of each token of the model's ``inputs``, int64[1, N], or [B, 1] for B padded rows."""
        if TREE in further:
            return torch.as_tensor(further[TREE].adapters, device=inputs["input_ids"].device)[None]
        numbers = torch.cat(list(rows[ADAPTER].unbind()))
        ids = inputs["input_ids"]
        if not tu.get_non_tensor_data(rows, "use_remove_padding", default=True):
            return numbers[:, None].to(ids.device)
        each = numbers.repeat_interleave(rows["input_ids"].offsets().diff().to(numbers.device))
        return torch.nn.functional.pad(each, (0, ids.shape[-1] - len(each)))[None].to(ids.device)

    def optimizer_step(self) -> float:
        """See verl's engine. Clips the gradients of each adapter to its own norm; one without gradients takes no step, as its
        momentum would change it too. Returns the mean norm of those that take one."""
        if self._adapters is None:
            norm: float = super().optimizer_step()  # type: ignore[misc]
            return norm
        norms = []
        for name in self._adapters.names:
            parameters = self._adapters.parameters(name)
            size = fsdp2_clip_grad_norm_(parameters, max_norm=self.optimizer_config.clip_grad)
            size = (size.full_tensor() if isinstance(size, DTensor) else size).item()
            if name in self._trained and size:
                norms.append(size)
            else:
                for parameter in parameters:
                    parameter.grad = None
        mean = sum(norms) / max(len(norms), 1)
        if not torch.isfinite(torch.tensor(mean)):
            raise FloatingPointError(f"the gradient's norm is {mean}; no step was taken")
        self.optimizer.step()
        return mean

    def get_per_tensor_param(
        self, *args: Any, **options: Any
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]:
        """See verl's engine. With adapters: their weights, whose names begin with that of the adapter, and the
        configuration of each under `ADAPTERS`."""
        adapters = self._adapters
        if adapters is None:
            found: tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]
            found = super().get_per_tensor_param(*args, **options)  # type: ignore[misc]
            return found
        configs = {name: adapters.config(name) for name in adapters.names}
        weights = ((f"{name}/{key}", weight) for name in configs for key, weight in self._whole_weights(name))
        return weights, {ADAPTERS: configs}

    def _whole_weights(self, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights of an adapter, put together from all ranks."""
        assert self._adapters is not None
        for key, weight in self._adapters.weights(name).items():
            if isinstance(weight, DTensor):
                yield key, weight.to(get_device_id()).full_tensor().detach()
            else:
                yield key, weight.detach()

    def save_checkpoint(self, local_path: str, *args: Any, **options: Any) -> None:
        """See verl's engine. Adapters are also saved in peft's layout."""
        super().save_checkpoint(local_path, *args, **options)  # type: ignore[misc]
        if self._adapters is None:
            return
        for name in self._adapters.names:
            weights = dict(self._whole_weights(name))
            if torch.distributed.get_rank() == 0:
                self._adapters.save(name, Path(local_path) / FOLDER / name, weights)
        torch.distributed.barrier()


# verl prefers an engine of the device's vendor to its own, which is of any vendor.
@EngineRegistry.register(
    model_type="language_model", backend=["fsdp", "fsdp2"], device=["cuda", "npu"], vendor=get_vendor()
)
class Engine(Lora, Trees, VisionTower, FSDPEngineWithLMHead):
    """verl's FSDP engine, which also trains several adapters, computes rows as trees, and computes rows with and without images."""
