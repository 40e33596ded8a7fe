"""Checks a checkpoint before a running engine loads it, as a partly loaded model is of no use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet import AjetError

Shapes = dict[str, tuple[int, ...]]
"""Shape of each tensor, by its name in the checkpoint."""


def folder_of(model: str) -> Path:
    """The folder of a model's files: ``model`` itself, or its copy in the Hub's cache."""
    from transformers.utils import cached_file

    return Path(cached_file(model, "config.json")).parent


def shapes(folder: Path) -> Shapes:
    """The tensors in a folder's safetensors files; reads only their headers. {} if there are none."""
    from safetensors import safe_open

    sizes: Shapes = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names = tensors.keys()
            sizes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in names}
    return sizes


def check(given: Shapes, wanted: Shapes, where: str) -> None:
    """Raise `AjetError` unless ``given`` has exactly the tensors of ``wanted``, in their shapes."""
    if not wanted:
        raise AjetError(
            "engine vllm: its model has no safetensors, so it accepts no new weights. Save it as safetensors."
        )
    if not given:
        raise AjetError(
            f"weights {where}: no *.safetensors there. Give a folder written by `save_pretrained`."
        )
    for name in sorted(wanted.keys() | given.keys()):
        if given.get(name) != wanted.get(name):
            raise AjetError(
                f"weights {where}: {name} is {_described(given, name)} there and {_described(wanted, name)} in the engine's "
                "model. Load a complete checkpoint of the same model."
            )


def chosen(tensors: Mapping[str, Any], wanted: Shapes) -> dict[str, Any]:
    """The torch tensors of a state dict that are in ``wanted``. Raises `AjetError` as `check` does."""
    found = {name: tensors[name].detach() for name in wanted if name in tensors}
    check({name: tuple(tensor.shape) for name, tensor in found.items()}, wanted, "given as tensors")
    return found


def write(tensors: Mapping[str, Any], folder: Path) -> None:
    """Write torch tensors as a checkpoint."""
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")


def _described(shapes: Shapes, name: str) -> str:
    return f"of shape {list(shapes[name])}" if name in shapes else "missing"
