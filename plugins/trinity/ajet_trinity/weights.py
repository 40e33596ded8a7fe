"""Weights as safetensors files, by the names of the model's checkpoint."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def files_of(folder: Path) -> list[Path]:
    """The safetensors files of a model's folder."""
    return sorted(folder.glob("*.safetensors"))


def read(files: Sequence[Path]) -> Mapping[str, torch.Tensor]:
    """All tensors of some files, in the memory of the CPU. Raises OSError and SafetensorError."""
    from safetensors.torch import load_file

    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def count(files: Sequence[Path]) -> int:
    """The number of weights in some files, without reading them."""
    from safetensors import safe_open

    total = 0
    for path in files:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    return total


def differ(old: Sequence[Path], new: Sequence[Path]) -> bool:
    """Whether any tensor of ``new`` differs from the one of its name in ``old``, at the precision of ``new``. It stops at the
    first one that does."""
    import torch

    before = dict(_tensors(old))
    for name, open_new in _tensors(new):
        if name in before:
            tensor = open_new()
            if not torch.equal(before[name]().to(tensor.dtype), tensor):
                return True
    return False


def _tensors(files: Sequence[Path]) -> Iterator[tuple[str, Any]]:
    """The names of the tensors of some files, and functions that read them."""
    from safetensors import safe_open

    for path in files:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
        for name in names:
            yield name, _reader(path, name)


def _reader(path: Path, name: str) -> Any:
    from safetensors import safe_open

    def read_it() -> torch.Tensor:
        with safe_open(path, "pt") as file:
            return file.get_tensor(name)

    return read_it
