"""Loading a causal language model and its tokenizer, with errors that say what a folder lacks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_layers import GradientCheckpointingLayer

from ajet.job.models import check_available
from ajet.types import AjetError

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
"""What the libraries raise for files that are damaged or missing."""


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
) -> tuple[Any, Any]:
    """Model (in eval mode: no dropout, in sampling or in training) and tokenizer.

    ``name`` is a folder in the Hugging Face layout or the id of a model on the Hub. Weights are
    float32 unless ``dtype`` says otherwise ("auto": as they are stored). Raises `AjetError` when the folder is missing or
    incomplete, or the id cannot be fetched.
    """
    source = checked_source(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError, EOFError, SafetensorError, pickle.UnpicklingError) as error:
        raise AjetError(f"model {source}: {first_line(error)}. Check the path or the Hub id.") from error
    return model.to(device or default_device()).eval(), tokenizer


def copy_in(model: Any, dtype: torch.dtype) -> Any:
    """A copy whose weights are of another type, as `load_model` would have them: the frequencies of positions stay
    what they are, as rounded ones would be other positions."""
    copied = copy.deepcopy(model)
    for parameter in copied.parameters():
        parameter.data = parameter.data.to(dtype)
    return copied


def load_tokenizer(name: str | Path) -> tuple[Any, str]:
    """Tokenizer of a model as in `load_model`, and the name of its architecture. Raises `AjetError`."""
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else str(name)
    check_available(source)
    try:
        return AutoTokenizer.from_pretrained(source), str(AutoConfig.from_pretrained(source).model_type)
    except (OSError, ValueError) as error:
        raise AjetError(f"model {source}: {first_line(error)}. Check the path or the Hub id.") from error


def context_length(model: Any) -> int:
    """Most tokens the model's positions reach (``max_position_embeddings``)."""
    return int(model.config.get_text_config().max_position_embeddings)


def is_called(name: str, ends: Collection[str] | None) -> bool:
    """Whether a module's name is one of ``ends`` or ends with one of them; all are, where none are given."""
    return ends is None or any(name == end or name.endswith(f".{end}") for end in ends)


def enable_checkpointing(model: Any) -> None:
    """Let `checkpointing` do something on ``model``."""
    name = "activation_checkpointing_enable"  # the other is deprecated in newer versions of transformers
    enable = getattr(model, name, None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def checkpointed_layers(model: Any) -> list[Any]:
    """The layers on which gradient checkpointing is enabled."""
    layers = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    return [layer for layer in layers if layer.gradient_checkpointing]


@contextmanager
def checkpointing(model: Any) -> Iterator[None]:
    """Within it, a model on which gradient checkpointing is enabled does it.

    transformers asks whether a layer is training. The layers alone say so, not what is in them: there
    is still no dropout.
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
    """``name`` as Hugging Face wants it; folders are looked into before anything is loaded. Raises `AjetError`."""
    folder = Path(name).expanduser()
    looks_like_a_path = (
        isinstance(name, Path) or str(name).startswith((".", "/", "~")) or str(name).count("/") > 1
    )
    if not folder.exists() and not looks_like_a_path:
        check_available(str(name))
        return str(name)
    if not folder.is_dir():
        raise AjetError(f"model folder {folder}: no such folder. Check the path given as `model`.")
    if not (folder / "config.json").is_file():
        raise AjetError(f"model folder {folder}: no config.json. Give a folder written by `save_pretrained`.")
    if not any((folder / file).is_file() for file in _TOKENIZER_FILES):
        raise AjetError(
            f"model folder {folder}: no tokenizer ({', '.join(_TOKENIZER_FILES)}). "
            f"Save the tokenizer of the model there: `tokenizer.save_pretrained({str(folder)!r})`."
        )
    if not any(any(folder.glob(pattern)) for pattern in _WEIGHT_FILES):
        raise AjetError(
            f"model folder {folder}: no weights ({', '.join(_WEIGHT_FILES)}). "
            f"Save the model there: `model.save_pretrained({str(folder)!r})`."
        )
    return str(folder)


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
