"""Runs inside vLLM's workers: computes AgentJet's logprobs, and loads weights while the engine runs.

vLLM's raw logprobs are at temperature 1, its processed ones after top-p and top-k. AgentJet needs
``log_softmax(logits / temperature)``, before top-p and top-k. So the sampler computes its raw logprobs from divided
logits, and those of a prompt at the temperature of its request. Ids without a token are sampled with the probability 0,
as by the local engine and in training.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.sample.sampler import Sampler

GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature; greedy calls are recorded at temperature 1."""


class TemperedSampler(Sampler):
    """vLLM's sampler, with raw logprobs at the temperature of each request.

    ``computed`` counts the tensors of logprobs computed here, under the keys "sampled" and "prompt".
    """

    prompt_temperature: float
    excluded: torch.Tensor
    """int64[K]: the ids without a token."""
    computed: dict[str, int]
    _divisor: torch.Tensor | float | None

    @classmethod
    def convert(cls, sampler: Sampler, excluded: torch.Tensor) -> TemperedSampler:
        """Turn an existing sampler, with its state, into an instance of this class. Raises RuntimeError for subclasses of
        vLLM's own."""
        if type(sampler) is not Sampler:
            raise RuntimeError(
                f"vLLM samples with {type(sampler).__module__}.{type(sampler).__name__}, which cannot compute logprobs "
                "at the temperature. Set VLLM_USE_V2_MODEL_RUNNER=0, or install a version of vLLM that the plugin's "
                "README names."
            )
        sampler.__class__ = cls
        assert isinstance(sampler, cls)
        sampler.prompt_temperature = 1.0
        sampler.excluded = excluded
        sampler.computed = {"sampled": 0, "prompt": 0}
        sampler._divisor = None
        return sampler

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        """Like vLLM's, but its raw logprobs are at the requests' temperatures (float[B]; None if all are greedy)."""
        temperature = sampling_metadata.temperature
        if temperature is None:
            self._divisor = 1.0
        else:
            self._divisor = torch.where(temperature < GREEDY_BELOW, 1.0, temperature)[:, None]
        logits.index_fill_(-1, self.excluded, float("-inf"))
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._divisor = None

    def compute_logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """``log_softmax(logits / temperature)`` over ids with a token, float32[B, V]. Outside `forward` the logits are a prompt's."""
        divisor = self.prompt_temperature if self._divisor is None else self._divisor
        self.computed["prompt" if self._divisor is None else "sampled"] += 1
        if self._divisor is None:
            logits = logits.index_fill(-1, self.excluded, float("-inf"))
        return (logits.float() / divisor).log_softmax(dim=-1)


class WorkerExtension:
    """Methods that vLLM mixes into its worker class; `AsyncLLM.collective_rpc` calls them by name."""

    model_runner: Any
    reload_weights: Any
    _ajet_constants: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()

    def ajet_apply_logprob_rule(self, excluded: list[int]) -> None:
        """Make this worker compute AgentJet's logprobs, and never sample the ids ``excluded``. Raises RuntimeError if its sampler is
        not vLLM's usual one."""
        # vLLM warns about modules without own weights; new weights are known to be complete.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        runner = self.model_runner
        sampler = TemperedSampler.convert(
            runner.sampler, torch.tensor(excluded, dtype=torch.int64, device=runner.device)
        )
        original = runner._get_prompt_logprobs_dict

        def prompt_logprobs(hidden_states: torch.Tensor, scheduled: dict[str, int]) -> dict[str, Any]:
            """Prompt logprobs (by request id), each computed at its request's temperature."""
            requested: dict[str, int] = runner.num_prompt_logprobs
            by_request: dict[str, Any] = {}
            try:
                for name in list(requested):
                    temperature = runner.requests[name].sampling_params.temperature
                    sampler.prompt_temperature = temperature if temperature >= GREEDY_BELOW else 1.0
                    runner.num_prompt_logprobs = single = {name: requested[name]}
                    by_request |= original(hidden_states, scheduled)
                    if not single:  # vLLM removes a request whose prompt is complete
                        del requested[name]
            finally:
                runner.num_prompt_logprobs = requested
            return by_request

        runner._get_prompt_logprobs_dict = prompt_logprobs

    def ajet_computed(self) -> dict[str, int]:
        """How often this worker computed AgentJet's logprobs, by kind (see `TemperedSampler.computed`)."""
        return dict(self.model_runner.sampler.computed)

    def ajet_keep_constants(self) -> None:
        """Copy the tensors of the model that are neither parameters nor buffers, such as the scale of embeddings of Gemma 3n: a sleep
        that frees weights zeroes them, and vLLM brings back buffers alone (vLLM's issue 53343)."""
        self._ajet_constants = [
            (value, value.cpu().clone())
            for module in self.model_runner.get_model().modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor) and name != "kv_cache"
        ]

    @torch.inference_mode()
    def ajet_restore_constants(self) -> None:
        """Put back what `ajet_keep_constants` has copied. New weights are to be loaded after it, as some may be views of weights."""
        for value, kept in self._ajet_constants:
            value.copy_(kept)
        self._ajet_constants = ()

    def ajet_return_memory(self) -> None:
        """Give back what loading weights used: the KV cache needs it."""
        torch.accelerator.empty_cache()

    def ajet_load_weights(self, folder: str) -> None:
        """Load a checkpoint's weights in place."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            # An output head tied to the embedding is not loaded itself, so its repacked weights are stale.
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
