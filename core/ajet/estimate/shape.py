"""The sizes of a decoder of the Llama kind, from its config.json."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ajet.types import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` whose layers `shape_of_config` knows."""


class UnknownFamily(ConfigError):
    """A model's family is not in `FAMILIES`."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model."""

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


def shape_of_config(config: Mapping[str, Any], model: str) -> ModelShape:
    """The shape that a config.json describes; ``model`` names it in errors. Raises ConfigError, and UnknownFamily if the
    model's family is not in `FAMILIES`."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnknownFamily(
            f"model {model}",
            f"its family {family!r} has layers that the estimate does not know. Known: {', '.join(FAMILIES)}.",
        )
    try:
        hidden, layers = int(config["hidden_size"]), int(config["num_hidden_layers"])
        inner, vocabulary = int(config["intermediate_size"]), int(config["vocab_size"])
        heads = int(config["num_attention_heads"])
        context = int(config["max_position_embeddings"])
    except KeyError as error:
        raise ConfigError(f"model {model}", f"config.json has no {error}. Add it there.") from None
    size = int(config.get("head_dim") or hidden // heads)
    queries, keys = heads * size, int(config.get("num_key_value_heads") or heads) * size
    of_layer = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    tied = bool(config.get("tie_word_embeddings", False))
    head_norms = family == "qwen3"
    biases = queries + 2 * keys if family == "qwen2" or config.get("attention_bias") else 0
    if config.get("attention_bias") and family in ("llama", "qwen3"):
        biases += hidden  # also of the output projection
    if config.get("mlp_bias"):
        biases += 2 * inner + hidden
    layer = sum(i * o for i, o in of_layer.values()) + 2 * hidden + biases + (2 * size if head_norms else 0)
    return ModelShape(
        parameters=(1 if tied else 2) * vocabulary * hidden + layers * layer + hidden,
        layers=layers,
        hidden=hidden,
        queries=queries,
        keys=keys,
        inner=inner,
        vocabulary=vocabulary,
        context=context,
        linear={f"model.layers.{n}.{name}": io for n in range(layers) for name, io in of_layer.items()},
        tied=tied,
        head_norms=head_norms,
    )
