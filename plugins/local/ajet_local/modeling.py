"""Load a causal language model and its tokenizer, with errors that say what a folder lacks."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    DynamicCache,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

from ajet import AjetError
from ajet.job.models import check_available
from ajet_local.processors import vision_of
from ajet_local.quantization import nf4
from ajet_local.sight import ATTRIBUTE
from ajet_trees.head import exclude

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    EOFError,
    RuntimeError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""Exceptions of the libraries for damaged or missing files."""


def default_device() -> torch.device:
    """The fastest device of this machine: cuda, else mps, else cpu."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def load_model(
    name: str | Path,
    device: torch.device | str | None = None,
    dtype: torch.dtype | str = torch.float32,
    *,
    four_bits: bool = False,
) -> tuple[Any, Any]:
    """The model (in eval mode: no dropout, neither in sampling nor in training) and its tokenizer.

    ``name`` is a folder in the Hugging Face layout or the id of a model on the Hub. Weights have the type ``dtype``
    ("auto": the stored one). Ids for which the tokenizer has no token have the probability 0. With ``four_bits``, the weights of
    linear layers other than the output layer are NF4 (QLoRA, Dettmers et al., arXiv:2305.14314), and computations have the type
    ``dtype``. Raises `AjetError` if the folder is missing or incomplete, or the id cannot be fetched.
    """
    source = checked_source(name)
    device = torch.device(device or default_device())
    # A quantized model cannot be moved: it is made on its device.
    quantized = {"quantization_config": nf4(dtype), "device_map": {"": device}} if four_bits else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
        config = AutoConfig.from_pretrained(source, trust_remote_code=False)
        check_kernels(source, config)
        model = model_class(config).from_pretrained(source, dtype=dtype, **quantized, trust_remote_code=False)
    except (OSError, ValueError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise AjetError(f"model {source}", f"{first_line(error)}. Check the path or the Hub id.") from error
    setattr(model, ATTRIBUTE, vision_of(source, tokenizer))
    model = model if four_bits else model.to(device)
    rows = model.get_output_embeddings().weight.shape[0]
    if unknown := sorted(set(range(rows)) - set(tokenizer.get_vocab().values())):
        exclude(model, unknown)
    return model.eval(), tokenizer


def model_class(config: Any) -> Any:
    """The class of transformers that loads a model: one that reads images, if the model does."""
    sees = hasattr(config, "vision_config") and type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    return AutoModelForImageTextToText if sees else AutoModelForCausalLM


def reads_images(source: str | Path) -> bool:
    """Whether a model folder or Hugging Face id is a model that reads images. Raises AjetError if it has no config."""
    name = checked_source(str(source))
    try:
        return (
            model_class(AutoConfig.from_pretrained(name, trust_remote_code=False))
            is AutoModelForImageTextToText
        )
    except (OSError, ValueError) as error:
        raise AjetError(f"model {name}", f"{first_line(error)}. Check the path or the Hub id.") from error


def copy_in(model: Any, dtype: torch.dtype) -> Any:
    """A copy with weights of another type, as `load_model` would load them. Only parameters are converted: rounding the
    buffers of rotary frequencies would change the positions."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(dtype)
    return copied


def load_tokenizer(name: str | Path) -> tuple[Any, str]:
    """The tokenizer of a model, and the name of its architecture. Raises `AjetError` as `load_model` does."""
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else str(name)
    check_available(source)
    try:
        return AutoTokenizer.from_pretrained(source, trust_remote_code=False), str(
            AutoConfig.from_pretrained(source, trust_remote_code=False).model_type
        )
    except (OSError, ValueError) as error:
        raise AjetError(f"model {source}", f"{first_line(error)}. Check the path or the Hub id.") from error


def context_length(model: Any) -> int:
    """Maximum number of positions of the model (``max_position_embeddings``)."""
    return int(model.config.get_text_config().max_position_embeddings)


def with_cache(model: Any, cache: Any) -> dict[str, Any]:
    """The arguments that give a model a cache of keys and values, or (None) none. Until its version 5.23, transformers called
    the cache ``past_key_values``."""
    if cache is None:
        return {"use_cache": False}
    names = inspect.signature(model.forward).parameters
    return {"cache" if "cache" in names else "past_key_values": cache, "use_cache": True}


def enable_checkpointing(model: Any) -> None:
    """Prepare ``model`` for `checkpointing`."""
    name = "activation_checkpointing_enable"  # newer versions of transformers deprecate the other name
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def checkpointed_layers(model: Any) -> list[Any]:
    """The layers on which gradient checkpointing is enabled."""
    layers = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    return [layer for layer in layers if layer.gradient_checkpointing]


@contextmanager
def checkpointing(model: Any) -> Iterator[None]:
    """A block in which a model prepared by `enable_checkpointing` checkpoints its gradients.

    transformers does so in layers whose ``training`` is true. It is set for the layers only, not for the modules in
    them, so there is still no dropout.
    """
    layers = checkpointed_layers(model)
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def checked_source(name: str | Path) -> str:
    """``name`` as Hugging Face accepts it. Raises `AjetError` for an incomplete folder, before anything is loaded."""
    folder = Path(name).expanduser()
    looks_like_a_path = (
        isinstance(name, Path) or str(name).startswith((".", "/", "~")) or str(name).count("/") > 1
    )
    if not folder.exists() and not looks_like_a_path:
        check_available(str(name))
        return str(name)
    if not folder.is_dir():
        raise AjetError(f"model folder {folder}", "no such folder. Check the path given as `model`.")
    if not (folder / "config.json").is_file():
        raise AjetError(
            f"model folder {folder}", "no config.json. Give a folder written by `save_pretrained`."
        )
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise AjetError(
            f"model folder {folder}",
            f"no tokenizer ({', '.join(_TOKENIZER_FILES)}). "
            f"Save the model's tokenizer there: `tokenizer.save_pretrained({str(folder)!r})`.",
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_FILES):
        raise AjetError(
            f"model folder {folder}",
            f"no weights ({', '.join(_WEIGHT_FILES)}). "
            f"Save the model there: `model.save_pretrained({str(folder)!r})`.",
        )
    return str(folder)


def first_line(error: Exception) -> str:
    """The first line of an error's message without a final period, or the name of its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


NEED_CUDA = {
    "flash-linear-attention": "triton",
    "fla-core": "triton",
    "causal-conv1d": "",
    "mamba-ssm": "",
}
"""Distributions whose kernels need an NVIDIA GPU, and with which transformers computes recurrent layers wherever it finds them; and
without which other one they cannot be imported, so that they break nothing."""


def recurrent(config: Any) -> bool:
    """Whether a model with this configuration has layers that keep more of a context than keys and values."""
    return any(hasattr(layer, "recurrent_states") for layer in DynamicCache(config=config).layers)


def failing_kernels() -> list[str]:
    """The installed distributions of `NEED_CUDA`, on a machine without CUDA."""
    if torch.cuda.is_available():
        return []
    return [
        name for name, with_ in NEED_CUDA.items() if _installed(name) and (not with_ or _installed(with_))
    ]


def check_kernels(source: str, config: Any) -> None:
    """Raise AjetError if an installed package breaks the recurrent layers of a model with this configuration."""
    broken = failing_kernels()
    if broken and recurrent(config):
        raise AjetError(
            f"model {source}",
            f"transformers computes its recurrent layers with {', '.join(broken)}, which fails without an NVIDIA GPU; torch computes "
            f"them without it: pip uninstall {' '.join(broken)}",
        )


def _installed(distribution: str) -> bool:
    try:
        return bool(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return False
