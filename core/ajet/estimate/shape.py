"""The sizes of a decoder of the Llama kind, from its config.json or from a table of well-known models."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
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


def read_shape(model: str) -> ModelShape:
    """The shape of a model's folder or Hugging Face id. An id that `KNOWN` lacks is looked up in the Hugging Face cache, then
    on the Hub. Raises ConfigError if there is no such model, and UnknownFamily if its family is not in `FAMILIES`."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return shape_of_config(_config(folder / "config.json", model), model)
    name = re.sub(r"(-Base|-Instruct|-Thinking)?(-\d{4})?$", "", model)
    if name in KNOWN:
        return shape_of_config(KNOWN[name], model)
    return shape_of_config(_config(_downloaded(model), model), model)


def shape_of_config(config: Mapping[str, Any], model: str) -> ModelShape:
    """The shape that a config.json describes; ``model`` names it in errors. Raises ConfigError as `read_shape` does."""
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


def _config(path: Path, model: str) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model {model}", f"cannot read {path.name} ({error}). Give a folder that has it."
        ) from error
    # A model of images and text has the sizes of its text part in a section.
    return config.get("text_config", config) if isinstance(config, dict) else {}


def _downloaded(model: str) -> Path:
    unknown = f"model {model}: its sizes are not known here"
    remedy = f"Give a folder with the model's config.json, or one of {', '.join(KNOWN)}."
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ConfigError(f"{unknown}. {remedy}") from None
    try:
        return Path(hf_hub_download(model, "config.json"))
    except Exception as error:  # of the hub's HTTP library, which changes
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ConfigError(f"{unknown} ({cause}). {remedy}") from error


def _known(family: str, tied: bool, *sizes: int) -> Mapping[str, Any]:
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    return {"model_type": family, "tie_word_embeddings": tied, **dict(zip(names, sizes, strict=True))}


KNOWN: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2.5-0.5B": _known("qwen2", True, 896, 24, 14, 2, 64, 4864, 151936, 32768),
    "Qwen/Qwen2.5-1.5B": _known("qwen2", True, 1536, 28, 12, 2, 128, 8960, 151936, 32768),
    "Qwen/Qwen2.5-3B": _known("qwen2", True, 2048, 36, 16, 2, 128, 11008, 151936, 32768),
    "Qwen/Qwen2.5-7B": _known("qwen2", False, 3584, 28, 28, 4, 128, 18944, 152064, 32768),
    "Qwen/Qwen2.5-14B": _known("qwen2", False, 5120, 48, 40, 8, 128, 13824, 152064, 32768),
    "Qwen/Qwen2.5-32B": _known("qwen2", False, 5120, 64, 40, 8, 128, 27648, 152064, 32768),
    "Qwen/Qwen2.5-72B": _known("qwen2", False, 8192, 80, 64, 8, 128, 29568, 152064, 32768),
    "Qwen/Qwen3-0.6B": _known("qwen3", True, 1024, 28, 16, 8, 128, 3072, 151936, 40960),
    "Qwen/Qwen3-1.7B": _known("qwen3", True, 2048, 28, 16, 8, 128, 6144, 151936, 40960),
    "Qwen/Qwen3-4B": _known("qwen3", True, 2560, 36, 32, 8, 128, 9728, 151936, 40960),
    "Qwen/Qwen3-8B": _known("qwen3", False, 4096, 36, 32, 8, 128, 12288, 151936, 40960),
    "Qwen/Qwen3-14B": _known("qwen3", False, 5120, 40, 40, 8, 128, 17408, 151936, 40960),
    "Qwen/Qwen3-32B": _known("qwen3", False, 5120, 64, 64, 8, 128, 25600, 151936, 40960),
    "meta-llama/Llama-3.2-1B": _known("llama", True, 2048, 16, 32, 8, 64, 8192, 128256, 131072),
    "meta-llama/Llama-3.2-3B": _known("llama", True, 3072, 28, 24, 8, 128, 8192, 128256, 131072),
    "meta-llama/Llama-3.1-8B": _known("llama", False, 4096, 32, 32, 8, 128, 14336, 128256, 131072),
    "meta-llama/Llama-3.1-70B": _known("llama", False, 8192, 80, 64, 8, 128, 28672, 128256, 131072),
}
"""Hugging Face ids, without endings such as -Base and -Instruct, with the sizes in their config.json, so that a model can be
planned without a network."""
