"""Checkpoints for a running engine: checked before vLLM opens them, as a half-loaded model answers nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.types import AjetError

Shapes = dict[str, tuple[int, ...]]
"""Shape of each tensor, by its name in the checkpoint."""


def folder_of(model: str) -> Path:
    """Where a model's files lie: the folder itself, or its copy in the Hub's cache."""
    from transformers.utils import cached_file

    return Path(cached_file(model, "config.json")).parent


def shapes(folder: Path) -> Shapes:
    """What the safetensors of a folder hold, if there are any; only their headers are read."""
    from safetensors import safe_open

    found: Shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
            found |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
    return found


def check(found: Shapes, wanted: Shapes, where: str) -> None:
    """Raises `AjetError` unless all tensors are there, in their shapes, and no others."""
    if not wanted:
        raise AjetError(
            "engine vllm: its model has no safetensors, so it takes no weights. Save it as safetensors."
        )
    if not found:
        raise AjetError(
            f"weights {where}: no *.safetensors there. Give a folder written by `save_pretrained`."
        )
    for name in sorted(wanted.keys() | found.keys()):
        if found.get(name) != wanted.get(name):
            raise AjetError(
                f"weights {where}: {name} is {_said(found, name)} there and {_said(wanted, name)} in the engine's "
                "model. Load a whole checkpoint of the same model."
            )


def write(tensors: Mapping[str, Any], wanted: Shapes, folder: Path) -> None:
    """Those torch tensors of a state dict that a checkpoint has, as one. Raises `AjetError` as `check`."""
    from safetensors.torch import save_file

    chosen = {name: tensors[name].detach() for name in wanted if name in tensors}
    check({name: tuple(tensor.shape) for name, tensor in chosen.items()}, wanted, "given as tensors")
    save_file({name: tensor.contiguous() for name, tensor in chosen.items()}, folder / "model.safetensors")


def _said(shapes: Shapes, name: str) -> str:
    return f"of shape {list(shapes[name])}" if name in shapes else "missing"
