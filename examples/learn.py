"""Run the examples that learn: held-out reward before and after training, and whether the gain is significant.

    python examples/learn.py --seed 0 [--record] [NAME ...]

Runs the installed `ajet` program as a user would. The last line is one JSON object; the exit code is 1 if an example's gain is
less than `GAIN` (`GAINS`), or less than `ERRORS` standard errors of the mean change of a task, or if `ajet audit` finds a token
that is not explained.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
NAMES = (
    "word_problems",
    "bfcl",
    "sqlite_agent",
    "reasoning_gym",
    "countdown",
    "frozenlake",
    "apps",
    "rubric",
    "learn_to_ask",
    "shapes",
    "math_code",
    "coding",
    "search",
    "werewolves",
)
GAIN = 0.15
GAINS = {"bfcl": 0.1}
"""Where less is much: on a benchmark made for models a hundred times as large."""
ERRORS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=f"default: {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the models, the tasks and the sampling"
    )
    parser.add_argument(
        "--record", action="store_true", help="write the results to learned.json of the example too"
    )
    options = parser.parse_args()
    found = {}
    for name in options.names or NAMES:
        found[name] = learn(name, options.seed)
        if options.record:
            record(name, options.seed, found[name])
    print(json.dumps(found))
    sys.exit(
        any(f["gain"] < GAINS.get(name, GAIN) or f["standard_errors"] < ERRORS for name, f in found.items())
    )


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train one example; returns its results."""
    root = Path.cwd() / "runs" / f"{name}-seed{seed}"
    print(f"== {name}, seed {seed}", flush=True)
    command = [sys.executable, "-m", "ajet", "run", str(HERE / name / "job.yaml"), "--seed", str(seed)]
    field = "params.seed" if name == "apps" else "seed"  # the service of `apps` makes the tasks
    for key, value in ((f"task.reader.{field}", seed), (f"task.validation.{field}", seed), ("run.dir", root)):
        command += ["--set", f"{key}={value}"]
    started = time.time()
    subprocess.run(command, check=True)
    run_dir = max(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
    subprocess.run([sys.executable, "-m", "ajet", "audit", str(run_dir)], check=True)
    rewards = validations(run_dir)
    first, last = rewards[min(rewards)], rewards[max(rewards)]
    before, after = ([statistics.fmean(episodes) for _, episodes in sorted(r.items())] for r in (first, last))
    changes = [b - a for a, b in zip(before, after, strict=True)]
    gain, error = statistics.fmean(changes), statistics.stdev(changes) / len(changes) ** 0.5
    return {
        "before": round(statistics.fmean(before), 3),
        "after": round(statistics.fmean(after), 3),
        "gain": round(gain, 3),
        "standard_errors": round(gain / error, 1) if error else 0.0,
        "episodes": sum(map(len, last.values())),
        "train_seconds": round(sum(seconds(run_dir)), 1),
        "seconds": round(time.time() - started, 1),
        "curve": curve(run_dir),
    }


def record(name: str, seed: int, result: dict[str, Any]) -> None:
    """Add a result to the example's `learned.json`, from which `tools/learning_curves.py` makes its picture and table."""
    sys.path.append(str(HERE.parent / "bench"))
    from save import measured

    path = HERE / name / "learned.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    known = dict(sorted({**known, str(seed): {**measured(), **result}}.items()))
    rows = ",\n".join(f"  {json.dumps(seed)}: {json.dumps(found)}" for seed, found in known.items())
    path.write_text(f"{{\n{rows}\n}}\n", encoding="utf-8")


def lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a run's file of one JSON object per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def validations(run_dir: Path) -> dict[int, dict[str, list[float]]]:
    """Step -> held-out task -> rewards of its sampled episodes; a failed episode counts as 0."""
    found: dict[int, dict[str, list[float]]] = {}
    for line in lines(run_dir / "episodes.jsonl"):
        if line.get("phase") == "validation":
            reward = 0.0 if line["failure"] else line["reward"]
            found.setdefault(line["step"], {}).setdefault(line["task"], []).append(reward)
    return found


def seconds(run_dir: Path) -> list[float]:
    """Seconds per step."""
    steps = [line for line in lines(run_dir / "metrics.jsonl") if line["type"] == "train"]
    return [step["seconds_rollout"] + step["seconds_update"] for step in steps]


def curve(run_dir: Path, points: int = 10) -> list[float]:
    """The mean training reward of each tenth of the steps."""
    rewards = [line["reward"] for line in lines(run_dir / "metrics.jsonl") if line["type"] == "train"]
    edges = [round(i * len(rewards) / points) for i in range(points + 1)]
    return [round(statistics.mean(rewards[a:b]), 3) for a, b in itertools.pairwise(edges) if b > a]


if __name__ == "__main__":
    main()
