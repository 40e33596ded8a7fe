"""Whole models of checkpoints: what `ajet export` writes, with an adapter merged into the weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from ajet.types import ConfigError
from ajet_local.adapters import Adapters, base_of, saved_adapters
from ajet_local.modeling import load_model
from ajet_local.trainer import STATE_FILE

OF_TRAINING = (STATE_FILE, "ajet.json", "files.json")
"""What a checkpoint holds besides the model."""


def export(checkpoint: Path, output: Path, target: str | None) -> None:
    """Write a checkpoint's model into the new folder ``output``: the same files if it is a whole one, else that
    of the adapter ``target`` (needed only if there are several), in the type of the base weights. Raises
    ConfigError."""
    if output.exists():
        raise ConfigError(f"{output} already exists; name a new folder.")
    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint}: no such folder.")
    if saved_adapters(checkpoint):
        disable_progress_bar()
        model, tokenizer = load_whole(checkpoint, target, dtype="auto")
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
        return
    if target is not None:
        raise ConfigError(
            f"--target {target}: {checkpoint} is a complete model without adapters. Remove --target."
        )
    if not (checkpoint / "config.json").is_file():
        raise ConfigError(f"{checkpoint} is not a checkpoint: it has neither adapters nor a config.json.")
    shutil.copytree(checkpoint, output, ignore=shutil.ignore_patterns(*OF_TRAINING))


def load_whole(source: str | Path, target: str | None = None, **options: Any) -> tuple[Any, Any]:
    """Model and tokenizer as in `load_model`; if ``source`` holds adapters, one of them, ``target`` or the only
    one, is merged into the weights. Raises ConfigError if it is not clear which."""
    saved = saved_adapters(source)
    if not saved:
        return load_model(source, **options)
    if target is None and len(saved) > 1:
        raise ConfigError(
            f"{source} contains the adapters of {', '.join(saved)}. Choose one (--target NAME), or name {source}/adapters/NAME."
        )
    name = target or next(iter(saved))
    if name not in saved:
        raise ConfigError(f"{source} has no adapter {name!r}; it has {', '.join(saved)}.")
    model, tokenizer = load_model(base_of(saved[name]), **options)
    adapters = Adapters(model)
    adapters.load(name, saved[name])
    return adapters.merge(name), tokenizer
