"""What the real model that AgentJet brings, SmolLM2-135M, can do.

    python bench/real_model.py --seed 0           # reinforcement learning on three public tasks: held-out reward before and after
    python bench/real_model.py --tools            # smollm2-tools on tools that it has never seen, three seeds
    python bench/real_model.py --speed            # sampling beside Hugging Face's generate, a step and its update beside TRL's

Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tools_of_smollm2 import figures, load

from ajet import model_source
from ajet.reports.progress import make_progress

SEEDS = (0, 1, 2)
PUBLIC = ("bfcl", "sqlite_agent", "reasoning_gym")
"""The examples that are trained."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="train the public tasks with this seed")
    what.add_argument("--tools", action="store_true", help="calls of tools never seen")
    what.add_argument("--speed", action="store_true", help="speed beside generate and TRL")
    options = parser.parse_args()
    if options.speed:
        import speed_of_smollm2  # says how many threads there are before torch is imported

        speed_of_smollm2.main([])
        return
    print(json.dumps(tools() if options.tools else {"tasks": public(options.seed)}))


def public(seed: int) -> dict[str, Any]:
    """Held-out reward of each example before and after reinforcement learning."""
    sys.path.append(str(Path(__file__).parents[1] / "examples"))
    from learn import learn

    names = ("before", "after", "standard_errors", "seconds")
    learned = {name: learn(name, seed) for name in PUBLIC}
    return {name: {key: found[key] for key in names} for name, found in learned.items()}


def tools() -> dict[str, Any]:
    """For the base model and each seed of the recipe: the shares of `figures`, greedy and sampled, and the seconds of the build, 0 if
    it was in the cache."""
    models = {"smollm2": tried("smollm2", 0)}
    for seed in SEEDS:
        models[f"smollm2-tools, seed {seed}"] = tried("smollm2-tools", seed)
    return models


def tried(model: str, seed: int) -> dict[str, Any]:
    """What a recipe's model does with the tools."""
    begun = time.monotonic()
    with make_progress() as progress:
        folder = Path(model_source(model, seed, progress))
    seconds = round(time.monotonic() - begun)
    engine, chat = load(folder)
    found = {
        name: figures(engine, chat, temperature, seed)[0]
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0))
    }
    print(f"{model}, seed {seed}: {json.dumps(found)}", flush=True)
    return {**found, "build_seconds": seconds}


if __name__ == "__main__":
    main()
