"""Samples tokens from logits: each row belongs to one request, which has its own stream of random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from ajet.interfaces.engine import Sampling


@dataclass(slots=True)
class RequestSampler:
    """The random numbers of one request: its own PCG64 stream, seeded by ``sampling.seed`` (None: by the system's
    entropy), so other requests in the batch do not affect it."""

    sampling: Sampling
    _random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self._random = np.random.Generator(np.random.PCG64(self.sampling.seed))

    def uniform(self) -> float:
        """The next number of the stream, in [0, 1); 0 for greedy requests, which draw none."""
        return 0.0 if self.sampling.greedy else float(self._random.random())


class Drawn(NamedTuple):
    """A sampled token."""

    token: int
    logprob: float
    kept: torch.Tensor | None
    """int64[K]: the tokens among which it was drawn, if `Sampling.report_kept` asks for them."""


def sample(logits: torch.Tensor, samplers: Sequence[RequestSampler]) -> list[Drawn]:
    """One token per row of ``logits`` (float[B, V]) by inverse CDF.

    The logprob is ``log_softmax(logits / temperature)[token]`` in float32, as in training, before top-k, top-p and min-p; if the
    kept tokens are asked for, over these alone.
    Greedy rows take the most likely token, with its logprob at temperature 1. The CDF is summed in integers, whose sum
    does not depend on the order: equal logits give equal tokens, on CUDA too.
    """
    if logits.device.type == "mps":
        logits = logits.cpu()  # mps has no float64
    device = logits.device
    settings = [sampler.sampling for sampler in samplers]
    temperatures = [1.0 if s.greedy else s.temperature for s in settings]
    if any(temperature != 1.0 for temperature in temperatures):
        logits = logits.float() / torch.tensor(temperatures, device=device)[:, None]
    logprobs = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    probs = logprobs.exp()
    kept: dict[int, torch.Tensor] = {}
    for row, sampling in enumerate(settings):
        if sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0:
            probs[row] = _truncated(probs[row], sampling)
            if sampling.report_kept and not sampling.greedy:
                kept[row] = _parts(probs[row]).nonzero()[:, 0]
    cdf = _parts(probs).cumsum(-1)
    uniforms = torch.tensor([s.uniform() for s in samplers], dtype=torch.float64, device=device)
    drawn = (uniforms[:, None] * cdf[:, -1:]).long()
    # right=True and a number below the total: a token of probability 0 is never drawn.
    tokens = torch.searchsorted(cdf, torch.minimum(drawn, cdf[:, -1:] - 1), right=True)
    # NaN logits give an arbitrary token; its logprob is NaN, which the caller notices.
    tokens.clamp_(0, logits.shape[1] - 1)
    greedy = [row for row, sampling in enumerate(settings) if sampling.greedy]
    if greedy:
        tokens[greedy] = logprobs[greedy].argmax(-1, keepdim=True)
    chosen = logprobs.gather(1, tokens)
    for row, among in kept.items():
        chosen[row] -= logprobs[row, among].logsumexp(0)
    numbers = zip(tokens[:, 0].tolist(), chosen[:, 0].tolist(), strict=True)
    return [Drawn(token, logprob, kept.get(row)) for row, (token, logprob) in enumerate(numbers)]


def _truncated(probs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """``probs`` (float32[V]) after top-k, then top-p (nucleus sampling: Holtzman et al., arXiv:1904.09751) and min-p (Nguyen et
    al., arXiv:2407.01082): excluded tokens are 0. The most likely token is always kept."""
    ordered, order = probs.sort(descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if sampling.top_k > 0:
        keep[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        nucleus = _parts(ordered * keep)
        running = nucleus.cumsum(-1)
        keep &= (running - nucleus).double() < sampling.top_p * running[-1].double()
    keep &= ordered >= sampling.min_p * ordered[0]
    keep[0] = True
    return torch.zeros_like(probs).scatter(0, order, ordered * keep)


def _parts(probs: torch.Tensor) -> torch.Tensor:
    """Probabilities (float32) in units of 2⁻⁵², rounded down, int64. Their sums are exact."""
    return (probs * 2.0**52).long()
