"""Building the starter into a folder, once for each recipe and seed."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from ajet.types import Metrics
from ajet_local.engine import LocalEngine
from ajet_local.starter.recipe import BETAS, CHECK_EVERY, CHECK_TASKS, PHASES, Phase, batches, model_config
from ajet_local.starter.tokenizer import build_tokenizer
from ajet_local.starter.transcripts import task_expression
from ajet_local.starter.trial import accuracy
from ajet_local.trainer import LocalTrainer

log = logging.getLogger("ajet")

Progress = Callable[[str, float, Metrics], None]
"""Called with "starter model", the share of the build that is done, and the step's loss or accuracy."""

EXPRESSIONS_FILE = "expressions.txt"
"""All expressions of the transcripts, one a line, sorted."""


def build_starter(folder: Path, seed: int, progress: Progress) -> None:
    """Make the starter of ``seed`` in the new folder ``folder``: model, tokenizer, `EXPRESSIONS_FILE`.

    Equal seeds and equal numbers of torch threads give equal bits. The folder appears whole, by
    renaming, or not at all. Raises FileExistsError when there is something already.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _build(part, seed, progress)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def cached_starter(seed: int, progress: Progress) -> Path:
    """The starter's folder, built when it is not there yet.

    It lies in ``$AJET_CACHE`` (default ``~/.cache/ajet``); its name holds a hash of the recipe's
    source, so a changed recipe builds anew. A second process waits for the first one's build. Blocks
    for minutes when it builds, and must not be called from a running event loop.
    """
    cache = Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"starter-{recipe_key(seed)}"
    if not folder.is_dir():
        with _locked(cache / f".{folder.name}.lock"):
            if not folder.is_dir():
                build_starter(folder, seed, progress)
    return folder


def recipe_key(seed: int) -> str:
    """16 hex digits over the seed and the source files of this package: what decides the result."""
    digest = hashlib.sha256(f"seed {seed}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _build(folder: Path, seed: int, progress: Progress) -> None:
    from renderers.configs import Qwen3RendererConfig
    from renderers.qwen3 import Qwen3Renderer

    tokenizer = build_tokenizer(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(model_config(tokenizer), dtype=torch.float32).eval()
    engine = LocalEngine(model, tokenizer)
    trainer = LocalTrainer(model, tokenizer, engine, betas=BETAS)
    renderer = Qwen3Renderer(tokenizer, Qwen3RendererConfig())
    used: set[str] = set()
    planned, done = sum(p.steps for p in PHASES), 0
    for phase in PHASES:
        for step, metrics in enumerate(_steps(phase, trainer, renderer, seed, used)):
            shown: Metrics = {n: metrics[n] for n in ("loss", "accuracy") if n in metrics}
            progress("starter model", (done + min(step + 1, phase.steps)) / planned, shown)
        done += phase.steps
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / EXPRESSIONS_FILE).write_text("".join(f"{e}\n" for e in sorted(used)))


def _steps(
    phase: Phase, trainer: LocalTrainer, renderer: Any, seed: int, used: set[str]
) -> Iterator[Metrics]:
    """Run the phase, yielding each step's metrics, until its goal is met or its cap is reached."""
    for step, batch in enumerate(batches(phase, seed, renderer, trainer.tokenizer, used), 1):
        metrics = trainer.update(batch)
        due = phase.goal is not None and step >= phase.steps and (step - phase.steps) % CHECK_EVERY == 0
        if due:
            metrics["accuracy"] = _check(trainer.engine, renderer, random.Random(f"check {seed} {step}"))
        yield metrics
        if due and phase.goal is not None and phase.goal(metrics["accuracy"]):
            return
    if phase.goal is not None:
        log.warning("starter: phase %r ended at its cap of steps, short of its goal", phase.name)


def _check(engine: LocalEngine, renderer: Any, rng: random.Random) -> float:
    """Sampled accuracy on `CHECK_TASKS` fresh problems, none of them held out."""

    async def run() -> float:
        await engine.start()
        try:
            expressions = [task_expression(rng) for _ in range(CHECK_TASKS)]
            return await accuracy(engine, renderer, expressions, temperature=1.0)
        finally:
            await engine.close()

    return asyncio.run(run())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold ``path`` as a lock between processes (POSIX ``flock``; it ends with its process)."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
