"""Which sampling parameters apply to a call: the rollout's in training, the agent's in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from ajet.capture.wires import ChatRequest
from ajet.types import Sampling


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """With ``training``, the rollout's temperature, top_p and seeds override the agent's, because an agent with
    temperature 0 would make every group identical. Otherwise they are defaults that the agent's values override.
    ``max_tokens`` and ``stop`` are always the agent's."""

    training: bool
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = None
    """For calls that set none."""

    def resolve(
        self, request: ChatRequest, seed: int | None, stop_token_ids: tuple[int, ...] = ()
    ) -> tuple[Sampling, list[str]]:
        """The parameters of a call, and the names of the request's parameters that were overridden."""
        asked = {"temperature": request.temperature, "top_p": request.top_p, "seed": request.seed}
        used = {"temperature": self.temperature, "top_p": self.top_p, "seed": seed}
        overridden = []
        if self.training:
            overridden = [name for name, value in asked.items() if value is not None and value != used[name]]
        else:
            used |= {name: value for name, value in asked.items() if value is not None}
        sampling = Sampling(
            temperature=float(used["temperature"] or 0.0),
            top_p=float(used["top_p"] or 1.0),
            top_k=self.top_k,
            max_tokens=request.max_tokens or self.max_tokens,
            stop=request.stop,
            stop_token_ids=stop_token_ids,
            seed=int(used["seed"]) if used["seed"] is not None else None,
        )
        return sampling, overridden
