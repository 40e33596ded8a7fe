"""What runs inside vLLM's workers: our logprob rule, and weights that arrive in a running engine.

vLLM's raw logprobs are at temperature 1, its processed ones after top-p and top-k. The rule is
between: ``log_softmax(logits / temperature)``, before anything is cut off. So the sampler's raw
logprobs are computed from divided logits, and those of a prompt at its request's temperature.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from vllm.v1.sample.sampler import Sampler

GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature; greedy calls are recorded at temperature 1."""


class TemperedSampler(Sampler):
    """vLLM's sampler, with raw logprobs at the temperature of each request.

    ``computed`` counts, by "sampled" and "prompt", the tensors of logprobs that were computed so.
    """

    prompt_temperature: float
    computed: dict[str, int]
    _divisor: torch.Tensor | float | None

    @classmethod
    def take_over(cls, sampler: Sampler) -> TemperedSampler:
        """Make an existing sampler one of these, with all that it holds."""
        if type(sampler) is not Sampler:
            raise RuntimeError(
                f"vLLM samples with {type(sampler).__module__}.{type(sampler).__name__}, whose logprobs cannot be "
                "brought to the temperature. Set VLLM_USE_V2_MODEL_RUNNER=0, or take a vLLM that the plugin's "
                "README names."
            )
        sampler.__class__ = cls
        assert isinstance(sampler, cls)
        sampler.prompt_temperature = 1.0
        sampler.computed = {"sampled": 0, "prompt": 0}
        sampler._divisor = None
        return sampler

    def forward(self, logits: torch.Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        """As vLLM's; the temperatures (float[B]; None if all are greedy) apply to its raw logprobs."""
        temperature = sampling_metadata.temperature
        if temperature is None:
            self._divisor = 1.0
        else:
            self._divisor = torch.where(temperature < GREEDY_BELOW, 1.0, temperature)[:, None]
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._divisor = None

    def compute_logprobs(self, logits: torch.Tensor) -> torch.Tensor:
        """``log_softmax(logits / temperature)``, float32[B, V]. Outside `forward` the logits are a prompt's."""
        divisor = self.prompt_temperature if self._divisor is None else self._divisor
        self.computed["prompt" if self._divisor is None else "sampled"] += 1
        return (logits.float() / divisor).log_softmax(dim=-1)


class WorkerExtension:
    """Methods that vLLM mixes into its worker class; `AsyncLLM.collective_rpc` calls them by name."""

    model_runner: Any
    reload_weights: Any

    def ajet_apply_logprob_rule(self) -> None:
        """Bring the logprobs of this worker under the rule. Raises RuntimeError if this vLLM is unknown."""
        runner = self.model_runner
        sampler = TemperedSampler.take_over(runner.sampler)
        of_all = runner._get_prompt_logprobs_dict

        def one_by_one(hidden_states: torch.Tensor, scheduled: dict[str, int]) -> dict[str, Any]:
            """Prompt logprobs (by request id), each computed at its request's temperature."""
            asked: dict[str, int] = runner.num_prompt_logprobs
            found: dict[str, Any] = {}
            try:
                for name in list(asked):
                    temperature = runner.requests[name].sampling_params.temperature
                    sampler.prompt_temperature = temperature if temperature >= GREEDY_BELOW else 1.0
                    runner.num_prompt_logprobs = one = {name: asked[name]}
                    found |= of_all(hidden_states, scheduled)
                    if not one:  # its prompt is done
                        del asked[name]
            finally:
                runner.num_prompt_logprobs = asked
            return found

        runner._get_prompt_logprobs_dict = one_by_one

    def ajet_computed(self) -> dict[str, int]:
        """How often this worker computed logprobs by the rule."""
        return dict(self.model_runner.sampler.computed)

    def ajet_load_weights(self, folder: str) -> None:
        """Load a checkpoint's weights in place."""
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        # It warns of modules that have no weights of their own; that the checkpoint is whole is known.
        logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)
        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            # A head that is tied to the embedding is not loaded itself; what was repacked from it is stale.
            for module in self.model_runner.get_model().modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
