"""The engine of verl's FSDP workers with what AgentJet adds to it: rows computed as trees, an adapter for each target of the job, and
models that see images (`ajet_verl.images`). Importing this module registers it; verl imports it in its processes, because
``actor_rollout_ref.model.external_lib`` names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.models.transformers.dense_common import CausalLMOutputForPPO
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name, get_vendor
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_, fsdp_version
from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead
from verl.workers.engine.utils import postprocess_batch_func

from ajet.interfaces.backbone import Sample
from ajet.learning.settings import LoraSettings
from ajet_lora.adapters import Adapters, prepare
from ajet_lora.folders import FOLDER, saved_adapters
from ajet_trees.head import Head, Predictions, head_of
from ajet_trees.models import ComputedTree, difference, obstacle, over_trees, tree_inputs
from ajet_trees.packing import pack
from ajet_verl.images import VisionTower, sees
from ajet_verl.layout import TREE
from ajet_verl.lora import ADAPTER, ADAPTERS, of


class Trees:
    """A mixin before verl's FSDP engine of language models: what the rows of a micro-batch share is computed once.

    verl's engine computes rows one beside the other. Rows with the field `TREE` are computed as one tree for each of its values
    instead. The model runs over the tree's tokens, each of which attends to its ancestors (`ajet_trees`). Its output layer gives
    the logprobs and entropies in place of logits, chunk by chunk, as verl's fused kernels do. These are put back where the rows
    have them, so losses see rows.
    """

    module: Any
    model_config: Any
    scaler: Any
    tree_obstacle = "the model is not loaded"
    """Why the model cannot be computed over trees; "" if it can. The same on all ranks. Rows are then computed as rows."""

    _head: Head | None = None
    _asked: _Asked | None = None
    _found: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def _build_module(self) -> Any:
        module = super()._build_module()  # type: ignore[misc]
        self._text_config = module.config.get_text_config()
        # Before FSDP wraps the module: it must see what the model returns, to gather the weights again for its gradients.
        module.get_output_embeddings().register_forward_pre_hook(self._before_logits)
        module.register_forward_hook(self._after_logits)
        return module

    def _before_logits(self, layer: Any, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        if self._asked is None:
            return None
        asked, self._asked = self._asked, None
        self._found = Predictions(given[0][0], self._head).logprobs(
            asked.labels, asked.temperatures, entropy=asked.entropy
        )
        return (given[0][:, :0],)

    def _after_logits(self, module: Any, given: Any, output: Any) -> Any:
        if self._found is None:
            return None
        (logprobs, entropies), self._found = self._found, None
        return CausalLMOutputForPPO(
            log_probs=logprobs[None], entropy=None if entropies is None else entropies[None]
        )

    def initialize(self) -> None:
        """See verl's engine. Also finds out whether the model can be computed over trees."""
        super().initialize()  # type: ignore[misc]
        with self.eval_mode(), self._autocast():  # type: ignore[attr-defined]
            obstacles: list[str] = [""] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(obstacles, self._find_obstacle())
            self.tree_obstacle = next(filter(None, obstacles), "")
            if not self.tree_obstacle:
                self._head = head_of(self.module)
            if fsdp_version(self.module) == 2:
                self.module.reshard()  # otherwise its root stays whole, in memory that the inference servers need

    def _find_obstacle(self) -> str:
        if sees(self.model_config):
            return "the model sees images, which verl's workers compute only as rows"
        config, device = self._text_config, torch.device(get_device_id())
        if getattr(config, "attention_dropout", 0):  # verl trains with dropout
            return "its attention has dropout"
        if reason := obstacle(config, device):
            return reason
        with over_trees(config):
            return difference(self.module, config.num_hidden_layers, device)

    def _autocast(self) -> AbstractContextManager[Any]:
        """As verl's `forward_step`."""
        kind = self._autocast_dtype  # type: ignore[attr-defined]
        if kind == torch.float32:
            return nullcontext()
        return torch.autocast(device_type=get_device_name(), dtype=kind)

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Any, forward_only: bool = False
    ) -> dict[str, Any]:
        """See verl's engine. Rows with the field `TREE` are computed as trees."""
        if TREE not in data.keys():  # noqa: SIM118 (its own iterator is one over rows)
            return super().forward_backward_batch(data, loss_function, forward_only)  # type: ignore[misc]
        if self.tree_obstacle:
            rows = data.exclude(TREE)
            return super().forward_backward_batch(rows, loss_function, forward_only)  # type: ignore[misc]
        tu.assign_non_tensor(data, sp_size=1, dp_size=self.get_data_parallel_size())  # type: ignore[attr-defined]
        numbers = torch.cat(list(data[TREE].unbind()))
        groups = [torch.nonzero(numbers == n).flatten().tolist() for n in numbers.unique().tolist()]
        outputs = []
        with over_trees(self._text_config), torch.set_grad_enabled(not forward_only):
            for group in groups:
                rows = tu.index_select_tensor_dict(data, group)
                with self._synchronizing(forward_only, last=group is groups[-1]):
                    loss, output = self.forward_step(rows, loss_function, forward_only)  # type: ignore[attr-defined]
                    if not forward_only:
                        (loss if self.scaler is None else self.scaler.scale(loss)).backward()
                        # Of no use, and it would be kept until the last micro-batch.
                        output.pop("model_output")
                outputs.append(output)
        processed: dict[str, Any] = postprocess_batch_func(outputs, groups, data)
        return processed

    def _synchronizing(self, forward_only: bool, last: bool) -> AbstractContextManager[None]:
        if forward_only:
            return nullcontext()
        return self._gradient_sync_context(is_last_micro_batch=last)  # type: ignore[attr-defined]

    def prepare_model_inputs(self, micro_batch: TensorDict) -> tuple[dict[str, Any], dict[str, Any]]:
        """See verl's engine."""
        if TREE not in micro_batch.keys():  # noqa: SIM118
            return super().prepare_model_inputs(micro_batch)  # type: ignore[misc]
        tree = RowTree(micro_batch)
        if self._head is not None:
            entropy = tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False)
            self._asked = _Asked(tree.labels, _temperatures(micro_batch, tree), entropy)
        return tree_inputs(tree.ids, tree.computed.layout, tree.predicting), {TREE: tree}

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: TensorDict, logits_processor_func: Any
    ) -> dict[str, torch.Tensor]:
        """See verl's engine."""
        tree = output_args.get(TREE)
        if tree is None:
            return super().prepare_model_outputs(output, output_args, micro_batch, logits_processor_func)  # type: ignore[misc]
        temperatures = _temperatures(micro_batch, tree)
        args = {
            "input_ids_rmpad_rolled": tree.labels,
            "temperature_rmpad": temperatures,
            "temperature_is_one": bool((temperatures == 1).all()),
            "pad_size": 0,
        }
        # For verl, the predicted tokens are one row, and it has no padding.
        row = TensorDict(
            {"input_ids": torch.nested.as_nested_tensor([tree.labels], layout=torch.jagged)}, [1]
        )
        entropy = tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False)
        fused = self._head is not None
        tu.assign_non_tensor(row, use_remove_padding=True, calculate_entropy=entropy, use_fused_kernels=fused)
        by_name = super().prepare_model_outputs(output, args, row, logits_processor_func)  # type: ignore[misc]
        return {name: tree.in_rows(values.values()) for name, values in by_name.items()}


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a pass over a tree is to find in place of logits."""

    labels: torch.Tensor
    temperatures: torch.Tensor
    entropy: bool


def _temperatures(micro_batch: TensorDict, tree: RowTree) -> torch.Tensor:
    """float32[K]: of each predicted token."""
    return torch.full(tree.labels.shape, float(micro_batch["temperature"]), device=tree.labels.device)


class RowTree:
    """The rows of a micro-batch as a tree. A trained token that several rows have is predicted once. Tensors are on the
    device of the rows."""

    def __init__(self, rows: TensorDict) -> None:
        self._rows = rows["input_ids"]
        device, samples = self._rows.device, _samples(rows)
        tree = pack(samples)
        self.computed = ComputedTree(tree)
        trained, first, inverse = np.unique(
            np.concatenate(tree.positions), return_index=True, return_inverse=True
        )
        starts = self._rows.offsets().cpu().numpy()
        places = [start + np.flatnonzero(s.mask) - 1 for start, s in zip(starts, samples, strict=False)]

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.as_tensor(array, dtype=torch.long, device=device)

        self.ids = tensor(self.computed.token_ids)
        """int64[N]: the tokens that the model computes."""
        self.predicting = tensor(self.computed.predicting[first])
        """int64[K]: those that predict a trained token, one for each of the tree's K trained tokens."""
        self.labels = tensor(tree.token_ids[trained])
        """int64[K]: the trained tokens."""
        adapters = [int(s.adapter or 0) for s in samples]
        self.adapters = adapters_of(self.computed, adapters, [len(p) for p in tree.positions])
        """int64[N]: the number of each token's adapter."""
        self._inverse, self._places = tensor(inverse), tensor(np.concatenate(places))

    def in_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Values [K] of the trained tokens, as a nested tensor of rows in verl's order: at a token's place is the value of
        the next one. Other places are 0."""
        flat = values.new_zeros(len(self._rows.values()))
        flat = flat.index_put((self._places,), values[self._inverse])
        return torch.nested.nested_tensor_from_jagged(flat, self._rows.offsets())


def adapters_of(tree: ComputedTree, numbers: Sequence[int], trained: Sequence[int]) -> np.ndarray:
    """The number of the adapter of each token that the model computes, int64[N]: that of the samples which contain it. ``numbers``
    and ``trained`` tokens are those of each sample."""
    if len(set(numbers)) == 1:  # also of jobs without adapters
        return np.full(len(tree.token_ids), numbers[0], np.int64)
    adapters = np.zeros(len(tree.token_ids), np.int64)
    adapters[tree.predicting] = np.repeat(numbers, trained)
    for token in range(len(adapters) - 1, 0, -1):  # each token has a larger index than its parent
        if tree.parents[token] >= 0:
            adapters[tree.parents[token]] = adapters[token]
    return adapters


def _samples(rows: TensorDict) -> list[Sample]:
    """The tokens of rows and which of them are trained. Padding rows have none; then it is the last, so that each rank's model
    takes part in the backward pass."""
    samples = []
    adapters = [0] * len(rows)
    if ADAPTER in rows.keys():  # noqa: SIM118
        adapters = torch.cat(list(rows[ADAPTER].unbind())).tolist()
    each = zip(_arrays(rows["input_ids"]), _arrays(rows["response_mask"]), adapters, strict=True)
    for ids, response_mask, adapter in each:
        mask = np.zeros(len(ids), np.bool_)
        mask[len(ids) - len(response_mask) :] = response_mask > 0
        mask[-1] |= not mask.any()
        unused = np.zeros(len(ids), np.float32)
        samples.append(Sample(ids.astype(np.int32), mask, unused, unused, unused, adapter=str(adapter)))
    return samples


def _arrays(nested: torch.Tensor) -> list[np.ndarray]:
    """The rows of a nested tensor, fetched from its device at once."""
    return np.split(nested.values().cpu().numpy(), nested.offsets().cpu().numpy()[1:-1])


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
            tensors: tuple[Iterator[tuple[str, torch.Tensor]], dict[str, Any] | None]
            tensors = super().get_per_tensor_param(*args, **options)  # type: ignore[misc]
            return tensors
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
