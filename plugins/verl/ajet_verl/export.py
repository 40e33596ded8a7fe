"""Exports verl's checkpoints as models in the Hugging Face layout."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ajet.types import AjetError, ConfigError


def export(checkpoint: Path, output: Path, target: str | None) -> None:
    """Merge the shards of the checkpoint's actor into the new folder ``output`` with verl's merger. Raises ConfigError for
    unsuitable arguments, AjetError if the merger fails."""
    if output.exists():
        raise ConfigError(f"{output} already exists; name a new folder.")
    if target is not None:
        raise ConfigError(f"--target {target}: the verl backbone trains a single target. Remove --target.")
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
