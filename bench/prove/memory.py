"""The device's peak memory in two steps of a job, beside the plan: one of `SHAPES`, with random weights.

The cache is small and micro-batches are full, so that every part of the plan is used.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import ajet
from prove.part import Options, Peak, main, write_model
from prove.training import tasks_of

SHAPES = {
    "0.6B": (1024, 3072, 28, 16, True),
    "1.7B": (2048, 6144, 28, 16, True),
    "4B": (2560, 9728, 36, 32, True),
    "8B": (4096, 12288, 36, 32, False),
}
"""Of Qwen3: hidden size, intermediate size, layers, heads, and whether the embeddings are also the output layer."""

CHANGES: dict[str, dict[str, Any]] = {
    "lora": {"targets.policy.lora.rank": 16},
    "4bit": {"backbone.local.quantize": "4bit"},
    "adamw_8bit": {"backbone.local.optimizer": "adamw_8bit"},
}
"""Settings for less memory; without one, all weights are trained with AdamW."""


def run(options: Options) -> dict[str, Any]:
    """Peak and plan, in GiB. ``extra``: a shape, and any of `CHANGES`. Raises AjetError if the job fails."""
    size, *changes = options.extra
    folder = options.folder / f"model-{size}"
    hidden, intermediate, layers, heads, tied = SHAPES[size]
    shape = {"hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers}
    shape |= {"num_attention_heads": heads, "tie_word_embeddings": tied}
    if options.reduced:
        shape |= {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    write_model(options, folder, shape)
    settings: dict[str, Any] = {
        "backbone.local.engine": "local",
        "backbone.local.cache_mib": 64 if options.reduced else 4096,
        "train.batch_size": 2 if options.reduced else 16,
        "rollout.group_size": 2 if options.reduced else 4,
        "rollout.sampling.max_tokens": 16,
        "rollout.context_length": 1024,
        "train.save_every": 1000,
    }
    for change in changes:
        settings |= CHANGES[change]
    if options.reduced:
        settings["backbone.local.memory_limit"] = "6GiB"
    agent = Path(__file__).with_name("agent.py")
    with Peak(options.device) as peak:
        made = ajet.run(
            workflow=f"{agent}:ask",
            judge=f"{agent}:judge",
            tasks=str(tasks_of(options, 20 if options.reduced else 220)),
            model=str(folder),
            backbone="local",
            run_dir=str(options.folder / f"runs-{size}"),
            steps=2,
            set=settings,
        )
    figures: dict[str, Any] = {"peak_gib": round(peak.bytes / 2**30, 3)}
    figures["logprob_diff_mean"] = made.metrics[0]["logprob_diff_mean"]
    if options.device.type == "cuda":
        figures["allocated_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
    command = [sys.executable, "-m", "ajet", "plan", "--json", "--model", str(folder), "--backbone", "local"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(
        [*command, *(["--gpus", "H100"] if options.reduced else [])], capture_output=True, text=True
    )
    shutil.rmtree(folder)
    if not done.stdout:
        return figures | {"plan": done.stderr.strip()}
    parts = max(json.loads(done.stdout)["memory"], key=lambda phase: phase["total"])
    return figures | {"plan_gib": round(parts["total"] / 2**30, 3), "plan": parts}


if __name__ == "__main__":
    main(run, __doc__)
