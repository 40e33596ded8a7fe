"""What `ajet export` writes: the model of a checkpoint, with an adapter merged into the weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from transformers.utils.logging import disable_progress_bar

from ajet import ConfigError
from ajet.interfaces.helpers import check_output
from ajet_local.modeling import load_model
from ajet_local.sight import vision_of_model
from ajet_local.trainer import STATE_FILE
from ajet_lora.adapters import load_merged
from ajet_lora.folders import saved_adapters

TRAINING_FILES = (STATE_FILE, "ajet.json", "files.json")
"""Files of a checkpoint that do not belong to the model."""


def export(checkpoint: Path, output: Path, target: str | None) -> None:
    """Write a checkpoint's model into the new folder ``output``.

    A whole model is copied. An adapter is merged into its base model, in the type of the base weights; ``target``
    names the adapter if there are several. Raises ConfigError.
    """
    if output.exists():
        raise ConfigError(f"{output} already exists; name a new folder.")
    check_output("output", output)
    if not checkpoint.is_dir():
        raise ConfigError(f"{checkpoint}: no such folder.")
    if saved_adapters(checkpoint):
        disable_progress_bar()
        model, tokenizer = load_whole(checkpoint, target, dtype="auto")
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
        if vision := vision_of_model(model):
            vision.processor.save_pretrained(output)
        return
    if target is not None:
        raise ConfigError(
            f"--target {target}: {checkpoint} is a complete model without adapters. Remove --target."
        )
    if not (checkpoint / "config.json").is_file():
        raise ConfigError(f"{checkpoint} is not a checkpoint: it has neither adapters nor a config.json.")
    shutil.copytree(checkpoint, output, ignore=shutil.ignore_patterns(*TRAINING_FILES))


def load_whole(source: str | Path, target: str | None = None, **options: Any) -> tuple[Any, Any]:
    """Model and tokenizer as from `load_model`. If ``source`` contains adapters, ``target`` or the only one is merged
    into the weights. Raises ConfigError if ``target`` is unknown, or missing where there are several."""
    if not saved_adapters(source):
        return load_model(source, **options)
    return load_merged(source, target, lambda base: load_model(base, **options))
