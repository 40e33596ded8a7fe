"""Rewards and a critic's values to the advantages of tokens, and to what the critic learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ajet.interfaces.algorithm import ActorCritic
from ajet.types import Float64, Metrics, Sample


def estimated(algorithm: ActorCritic, samples: Sequence[Sample]) -> tuple[list[Sample], Metrics]:
    """The samples, whose ``advantages`` are rewards, with advantages and returns; and how well the critic predicted these.

    In each timeline, the trained tokens of an agent follow each other, whatever lies between them; its reward comes after
    the last one. Advantages are scaled over the tokens of all samples with the same adapter. The metric
    ``explained_variance`` is 1 - Var(returns - values) / Var(returns): 1 for a perfect critic, 0 for one that predicts
    the same for every token. It is left out if all returns are equal.
    """
    values = [_trained(s, s.values) for s in samples]
    advantages = [_of_timeline(algorithm, s, v) for s, v in zip(samples, values, strict=True)]
    returns = [a + v for a, v in zip(advantages, values, strict=True)]
    for adapter in {s.adapter for s in samples}:
        own = [i for i, s in enumerate(samples) if s.adapter == adapter]
        scaled = algorithm.scale(np.concatenate([advantages[i] for i in own]))
        ends = np.cumsum([len(advantages[i]) for i in own])
        for i, part in zip(own, np.split(scaled, ends[:-1]), strict=True):
            advantages[i] = part
    learnable = [
        replace(s, advantages=_whole(s, a), returns=_whole(s, r))
        for s, a, r in zip(samples, advantages, returns, strict=True)
    ]
    return learnable, _explained(np.concatenate(returns), np.concatenate(values))


def _of_timeline(algorithm: ActorCritic, sample: Sample, values: Float64) -> Float64:
    """float64[N]: the unscaled advantages of a sample's trained tokens."""
    rewards, agents = _trained(sample, sample.advantages), _agents(sample)
    advantages = np.zeros(len(values))
    for agent in np.unique(agents):
        own = np.flatnonzero(agents == agent)
        after = np.zeros(len(own))
        after[-1] = rewards[own[-1]]
        advantages[own] = algorithm.estimate(after, values[own])
    return advantages


def _agents(sample: Sample) -> np.ndarray:
    """int64[N]: the number of the agent that sampled each trained token."""
    numbers = {name: i for i, name in enumerate(dict.fromkeys(span.agent for span in sample.spans))}
    agents = np.zeros(len(sample.token_ids), np.int64)
    for span in sample.spans:
        agents[span.start : span.end] = numbers[span.agent]
    return agents[sample.mask]


def _trained(sample: Sample, array: np.ndarray | None) -> Float64:
    assert array is not None
    return array[sample.mask].astype(np.float64)


def _whole(sample: Sample, trained: Float64) -> np.ndarray:
    """float32[T]: numbers of the trained tokens at their positions, 0 elsewhere."""
    whole = np.zeros(len(sample.token_ids), np.float32)
    whole[sample.mask] = trained
    return whole


def _explained(returns: Float64, values: Float64) -> Metrics:
    variance = returns.var()
    return {"explained_variance": float(1 - (returns - values).var() / variance)} if variance else {}
