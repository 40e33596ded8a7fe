"""Which sampling parameters apply to a call: the rollout's in training, the agent's in evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from ajet.interfaces.wire import ChatRequest
from ajet.types import Sampling

LEAST_TOP_P = 1e-6
"""What a top_p of 0 means: only the likeliest token is left. Engines take no 0."""


@dataclass(frozen=True, slots=True)
class SamplingPolicy:
    """With ``training``, the rollout's temperature, top_p, top_k and seeds override the agent's, because an agent with
    temperature 0 would make every group identical. Otherwise they are defaults that the agent's values override.
    ``max_tokens`` and ``stop`` are always the agent's."""

    training: bool
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int | None = None
    """For calls that set none."""
    min_p: float = 0.0
    report_kept: bool = False
    """See `Sampling.report_kept`."""

    def resolve(
        self, request: ChatRequest, seed: int | None, stop_token_ids: tuple[int, ...] = (), index: int = 0
    ) -> tuple[Sampling, list[str]]:
        """The parameters of a choice, and the names of the request's parameters that were overridden. ``index`` counts the
        choices of a request: each has a seed of its own."""
        used = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "seed": seed}
        asked = {name: getattr(request, name) for name in used}
        overridden = []
        if self.training:
            overridden = [name for name, value in asked.items() if value is not None and value != used[name]]
        else:
            used |= {name: value for name, value in asked.items() if value is not None}
            if request.seed is not None:
                used["seed"] = (request.seed + index) % 2**63  # clients may send any whole number of 64 bits
        sampling = Sampling(
            temperature=float(used["temperature"] or 0.0),
            top_p=max(float(used["top_p"] or 0.0), LEAST_TOP_P),
            top_k=int(used["top_k"] or 0),
            min_p=self.min_p,
            report_kept=self.report_kept,
            max_tokens=request.max_tokens or self.max_tokens,
            stop=request.stop,
            stop_token_ids=stop_token_ids,
            seed=int(used["seed"]) if used["seed"] is not None else None,
        )
        return sampling, overridden
