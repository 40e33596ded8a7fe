"""The folders of adapters. This module imports no torch."""

from __future__ import annotations

from pathlib import Path

FOLDER = "adapters"
"""Folder of a checkpoint that contains one folder per adapter, named after its target."""
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as peft names them."""


def saved_adapters(source: str | Path) -> dict[str, Path]:
    """The folders of a checkpoint's adapters by name, or the one adapter of a folder in peft's layout; {} for a whole
    model."""
    folder = Path(source).expanduser()
    if (folder / CONFIG).is_file():
        return {folder.resolve().name: folder}
    return {file.parent.name: file.parent for file in sorted(folder.glob(f"{FOLDER}/*/{CONFIG}"))}
