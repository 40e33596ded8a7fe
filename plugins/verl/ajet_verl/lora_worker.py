"""What vLLM's workers do with the adapters that the trainer sends them."""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from ajet_verl.lora import ADAPTERS, NOWHERE


class AdapterWorker(vLLMColocateWorkerExtension):
    """verl's methods in a worker of vLLM, which replace all adapters of a job at once."""

    def _update_weights(
        self, weights: list[tuple[str, torch.Tensor]], peft_config: dict[str, Any], base_sync_done: bool
    ) -> None:
        tensors = dict(weights)
        for number, (name, config) in enumerate(peft_config[ADAPTERS].items(), 1):
            own = {
                key.removeprefix(f"{name}/"): weight
                for key, weight in tensors.items()
                if key.startswith(f"{name}/")
            }
            self.remove_lora(number)
            self.add_lora(
                TensorLoRARequest(
                    lora_name=name,
                    lora_int_id=number,
                    lora_path=NOWHERE,
                    peft_config=config,
                    lora_tensors=own,
                )
            )
