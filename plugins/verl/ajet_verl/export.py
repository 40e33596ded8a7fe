"""Exports verl's checkpoints as models in the Hugging Face layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from ajet.types import AjetError, ConfigError
from ajet_lora.folders import saved_adapters


def export(checkpoint: Path, output: Path, target: str | None) -> None:
    """Write a checkpoint's model into the new folder ``output``. verl's merger puts the shards of a whole model together. An adapter
    is merged into its base model, in the type of the base weights; ``target`` names it if there are several. Raises
    ConfigError for unsuitable arguments, AjetError if the merger fails."""
    if output.exists():
        raise ConfigError(f"{output} already exists; name a new folder.")
    if saved_adapters(checkpoint):
        from ajet_lora.adapters import load_merged

        model, tokenizer = load_merged(checkpoint, target, _load)
        model.save_pretrained(output)
        tokenizer.save_pretrained(output)
        return
    if target is not None:
        raise ConfigError(
            f"--target {target}: {checkpoint} is a complete model without adapters. Remove --target."
        )
    actor = next(checkpoint.glob("global_step_*/actor"), None)
    if actor is None:
        raise ConfigError(
            f"{checkpoint} is not a checkpoint of the verl backbone; name a folder checkpoints/step_NNNNNN."
        )
    backend = "fsdp" if any(actor.glob("model_world_size_*_rank_*.pt")) else "megatron"
    command = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", backend]
    command += ["--local_dir", str(actor), "--target_dir", str(output)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        line = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise AjetError(
            f"{checkpoint}: verl's merger failed: {line}. To see all of its output, run: {' '.join(command)}"
        )


def _load(model: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(model, dtype="auto"), AutoTokenizer.from_pretrained(model)
