"""The sizes of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

FLOAT32 = 4
BFLOAT16 = 2
QUANTIZED = 0.516
"""Bytes of a weight in 4 bits with double quantization: 4 bits, and 0.127 bits for the constants of its block (Dettmers et al.,
arXiv:2305.14314, section 3)."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model. By default it is a decoder of the Llama kind."""

    parameters: int
    layers: int
    hidden: int
    queries: int
    """Width of a token's queries, all heads together."""
    keys: int
    """Width of a token's keys, all heads together."""
    inner: int
    """Width of the feed-forward layer."""
    vocabulary: int
    context: int
    """Maximum number of positions."""
    linear: Mapping[str, tuple[int, int]]
    """Name -> (inputs, outputs) of every linear layer except the head."""
    tied: bool = False
    """Whether the head has the same weights as the embedding."""
    head_norms: bool = False
    """Whether the queries and keys of each head are normalised."""
    past: int | None = None
    """Numbers that an engine's cache keeps of a token; None: keys and values of every layer."""
    states: tuple[int, int] = (0, 0)
    """Numbers that recurrent layers keep of a context, whatever its length: in the type of the computations, and in float32."""
    saved: tuple[int, int] | None = None
    """Bytes that autograd saves of a token in all layers, in 16 bits and in float32; None: as in a decoder of the Llama kind."""

    @property
    def embedding(self) -> int:
        """Number of weights of the embedding; the head has as many."""
        return self.vocabulary * self.hidden

    @property
    def multiplied(self) -> int:
        """Number of weights that each token is multiplied with: all but the embedding, which is looked up."""
        return self.parameters - (0 if self.tied else self.embedding)

    @property
    def linear_parameters(self) -> int:
        """Number of weights of the linear layers, without the head."""
        return sum(inputs * outputs for inputs, outputs in self.linear.values())

    def adapter_parameters(self, rank: int, modules: Collection[str] | None = None) -> int:
        """Number of weights of a LoRA adapter on the linear layers whose names end with ``modules`` (None: all)."""
        return rank * sum(
            inputs + outputs
            for name, (inputs, outputs) in self.linear.items()
            if modules is None or any(name == m or name.endswith(f".{m}") for m in modules)
        )

    def cached(self, tokens: int, number: int) -> int:
        """Bytes of the keys and values of ``tokens`` tokens, with ``number`` bytes for each number."""
        return tokens * (self.layers * 2 * self.keys if self.past is None else self.past) * number

    def held(self, tokens: int, number: int) -> int:
        """Bytes of a context of ``tokens`` tokens: keys and values, and the states of recurrent layers."""
        return self.cached(tokens, number) + self.states[0] * number + self.states[1] * 4
