"""The sizes of a decoder of the Llama kind, from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ajet import ConfigError
from ajet.estimate.shape import ModelShape

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Values of ``model_type`` whose layers `shape_of_config` knows."""


class UnknownFamily(ConfigError):
    """A model's family is not in `FAMILIES`."""


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
