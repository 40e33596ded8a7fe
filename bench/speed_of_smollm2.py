"""Compares the local backbone on SmolLM2-135M with Hugging Face `generate` and with TRL's GRPOTrainer.

    python bench/speed_of_smollm2.py                       # both parts
    python bench/speed_of_smollm2.py step --steps 1        # one of them: generation, step

Generation: as many distinct prompts at once as `CONCURRENT` says, 48 + 48 tokens. Step: 8 word problems × 8 answers of up to 20
tokens, with the prompts of examples/word_problems. All in bfloat16; the sides alternate. All times are CPU seconds of one thread,
because other load on the machine distorts any other clock. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import generation
import local
import torch
from grpo_work import Work
from transformers import AutoModelForCausalLM

from ajet import model_source
from ajet.reports.progress import make_progress

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "word_problems"
PARTS = ("generation", "step")
CONCURRENT = (1, 16, 64, 128)
TOKENS = 48
ROUNDS = 3
ROWS = 8
"""Rows of one forward pass of TRL: those of all answers would take 30 GB of activations."""


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print and return the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="measured rounds of each side's generation"
    )
    parser.add_argument("--steps", type=int, default=ROUNDS, help="measured steps of each side")
    parser.add_argument("--concurrent", type=int, nargs="+", default=CONCURRENT, help="requests at once")
    parser.add_argument("--peer", default=str(local.PEER), help="Python of the environment with TRL")
    options = parser.parse_args(arguments)
    parts = options.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if "step" in parts and not os.access(options.peer, os.X_OK):
        sys.exit(
            f"{options.peer}: not the Python of an environment with TRL. `make .venv-trl/.installed` makes one."
        )
    torch.set_num_threads(1)
    with make_progress() as progress:
        model = Path(model_source("smollm2", 0, progress))
    figures: dict[str, Any] = {}
    if "generation" in parts:
        figures["generation_ratio_hf"] = compare_generation(model, options.concurrent, options.rounds)
    if "step" in parts:
        with tempfile.TemporaryDirectory() as folder:
            figures |= compare_steps(word_problems(Path(folder), model), options.peer, options.steps)
    print(json.dumps(figures))
    return figures


def compare_generation(folder: Path, concurrent: Sequence[int], rounds: int) -> dict[str, float]:
    """How many times as fast as `generate` we sample, for each number of requests at once."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None
    found = {}
    for count in concurrent:
        work = generation.Requests(count, 1, TOKENS, TOKENS)
        seconds = asyncio.run(generation.alternate(model, work, rounds))
        print(f"{count} at once:")
        generation.show(work, *seconds)
        found[str(count)] = round(generation.ratio(*seconds), 3)
    return found


def word_problems(folder: Path, model: Path) -> Work:
    """Problems with the examples of the agent before them. No answer is right or wrong: every token is trained."""
    sys.path.append(str(EXAMPLE))
    from agent import LONGEST_SUM, SHOWN
    from problems import Problems

    (folder / "model").symlink_to(model.resolve())
    drawn = Problems(count=64).tasks()
    tasks = [{"id": task.id, "query": task.query, "answer": "", "shown": SHOWN} for task in drawn]
    work = Work(str(folder), max_tokens=LONGEST_SUM, learning_rate=1e-6, dtype="bfloat16", rows=ROWS)
    work.write_tasks(tasks)
    return work


def compare_steps(work: Work, peer: str, steps: int) -> dict[str, float]:
    """Ratios of the CPU seconds of a step, and of its update alone."""
    others: list[dict[str, float]] = []
    clock = local.Clock()
    with local.running(peer, work, seed=0) as theirs:
        clock.between = lambda: others.append(theirs.step())
        clock.enough = lambda: len(others) >= steps
        local.train(work, "sdk", clock, local.MAX_STEPS, seed=0)
    own = clock.steps
    print(f"{'':22}{'step ms':>9}{'sampled/s':>11}{'trained/s':>11}   breakdown in ms")
    local.show("ajet", own)
    local.show("TRL", others)
    ours = median(step["training"] for step in own)
    return {
        "step_ratio_trl": local.ratio(own, others),
        "update_ratio_trl": round(ours / median(s["seconds"] - s["generation"] for s in others), 3),
    }


if __name__ == "__main__":
    main()
