"""A new run folder: the resolved job and the versions that took part."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.job import Job, resolved_yaml
from ajet.progress import Progress
from ajet.rollout.recorder import CHECKPOINT_STATE
from ajet.types import ConfigError

TOKENIZER = "tokenizer"
"""The folder in a run folder that holds the model's tokenizer."""


def new_run_dir(job: Job) -> Path:
    """A new run folder with the resolved job and the versions in it; says where it is."""
    stem = time.strftime("%Y%m%d-%H%M%S")
    root = Path(job.config.run.dir).expanduser().resolve()
    root.mkdir(parents=True, exist_ok=True)
    for n in range(1000):
        run_dir = root / (f"{stem}-{n}" if n else stem)
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        (run_dir / "job.yaml").write_text(resolved_yaml(job), encoding="utf-8")
        (run_dir / "versions.json").write_text(json.dumps(versions(job), indent=2))
        job.progress.started(run_dir)
        return run_dir
    raise ConfigError(f"run.dir: {root} holds too many runs of this second.")


def keep_tokenizer(run_dir: Path, tokenizer: Any, progress: Progress) -> None:
    """Save a model's tokenizer in the run folder, so that tokens can be read without the model."""
    if (run_dir / TOKENIZER).exists():
        return
    try:
        tokenizer.save_pretrained(run_dir / TOKENIZER)
    except Exception as error:
        progress.say(f"the tokenizer cannot be saved, so `ajet show` will show ids only: {error}")


def checkpoint_step(model: str) -> int | None:
    """The training step after which a checkpoint was written; None for any other model. ``model`` may also be the
    folder of one of the checkpoint's adapters."""
    folder = Path(model).expanduser()
    for checkpoint in (folder, folder.parent.parent):
        try:
            state = json.loads((checkpoint / CHECKPOINT_STATE).read_text())
            return int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def versions(job: Job) -> Mapping[str, str]:
    """Python and every distribution that took part."""
    names = {i.distribution for i in job.plugins.classes.values()} | {
        "torch",
        "transformers",
        "renderers",
        "numpy",
        "openai",
        "httpx2",
        "httpx",
    }
    found = {"python": platform.python_version(), "platform": platform.platform(), "argv": " ".join(sys.argv)}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
