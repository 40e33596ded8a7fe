"""The whole process in one command: tasks, a model, validation, training, validation, a summary.

    python demo.py --seed 0

Runs the installed `ajet` program as a user would. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed of the model, the tasks and the sampling"
    )
    seed = parser.parse_args().seed
    tasks = make_tasks(seed)
    root = Path.cwd() / "runs" / f"math-seed{seed}"
    seeded = [
        "--deterministic",
        "--seed",
        str(seed),
        "--tasks",
        str(tasks / "train.jsonl"),
        "--validation",
        str(tasks / "validation.jsonl"),
    ]
    ajet("run", *seeded, "--set", f"run.dir={root}")
    run_dir = max(root.iterdir(), key=lambda folder: folder.stat().st_mtime)
    check_disjoint(seed, tasks)
    validations = read_validations(run_dir)
    before, after = validations[min(validations)], validations[max(validations)]
    checkpoint = max((run_dir / "checkpoints").iterdir())
    reloaded = evaluate_alone(checkpoint, tasks, seed)
    seconds = sum(
        m["seconds_rollout"] + m["seconds_update"] for m in read_metrics(run_dir) if m["type"] == "train"
    )
    result = {
        "accuracy_before": before["validation"],
        "accuracy_after": after["validation"],
        "greedy_before": before["greedy"],
        "greedy_after": after["greedy"],
        "train_seconds": round(seconds, 1),
        "run_dir": str(run_dir),
    }
    print(summary(result, reloaded, checkpoint))
    print(json.dumps(result))


def ajet(*arguments: str) -> None:
    """Run `ajet` with its output on the terminal; exit if it fails."""
    command = [sys.executable, "-m", "ajet", arguments[0], str(HERE / "job.yaml"), *arguments[1:]]
    code = subprocess.run(command, check=False).returncode
    if code:
        sys.exit(code)


def make_tasks(seed: int) -> Path:
    """Training and held-out tasks of a seed."""
    folder = HERE / "tasks" / f"seed{seed}"
    command = [sys.executable, str(HERE / "make_tasks.py"), "--seed", str(seed), "--out", str(folder)]
    subprocess.run(command, check=True)
    return folder


def check_disjoint(seed: int, tasks: Path) -> None:
    """Exit if a held-out expression was in the model's transcripts or is a training task."""
    from ajet.interfaces.progress import Silent
    from ajet.job.models import model_source

    model = Path(model_source("calculator", seed, Silent()))
    seen = {line.replace(" ", "") for line in (model / "tasks.txt").read_text().splitlines()}
    seen |= {json.loads(line)["id"] for line in (tasks / "train.jsonl").read_text().splitlines()}
    held_out = {json.loads(line)["id"] for line in (tasks / "validation.jsonl").read_text().splitlines()}
    if seen & held_out:
        sys.exit(
            f"{len(seen & held_out)} held-out tasks were trained on, so the results would be meaningless"
        )
    print(f"{len(held_out)} held-out tasks, none among the {len(seen)} expressions that were trained on")


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The run's metrics: one dict per step or validation."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def read_validations(run_dir: Path) -> dict[int, dict[str, float]]:
    """Step -> accuracy by kind of validation."""
    found: dict[int, dict[str, float]] = {}
    for line in read_metrics(run_dir):
        if line["type"] in ("validation", "greedy"):
            found.setdefault(line["step"], {})[line["type"]] = line["accuracy"]
    return found


def evaluate_alone(checkpoint: Path, tasks: Path, seed: int) -> float:
    """The checkpoint's sampled accuracy, measured in a new process."""
    command = [
        sys.executable,
        "-m",
        "ajet",
        "eval",
        str(HERE / "job.yaml"),
        "--model",
        str(checkpoint),
        "--json",
    ]
    command += ["--tasks", str(tasks / "validation.jsonl"), "--seed", str(seed)]
    command += ["--set", "eval.greedy=false", "--set", "run.deterministic=true"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(json.loads(printed.splitlines()[-1])["accuracy"])


def summary(result: dict[str, Any], reloaded: float, checkpoint: Path) -> str:
    """The figures as a table, and where to look next."""
    return f"""
                      before    after
  sampled accuracy    {result["accuracy_before"]:6.1%}   {result["accuracy_after"]:6.1%}
  greedy accuracy     {result["greedy_before"]:6.1%}   {result["greedy_after"]:6.1%}
  training            {result["train_seconds"]:.0f} s
  the checkpoint in a new process: {reloaded:.1%} sampled accuracy

Where to look next
  {result["run_dir"]}/metrics.jsonl    every step in numbers
  ajet show {result["run_dir"]}   the summary of the run, every episode: chat, tokens, logprobs, advantage
  tensorboard --logdir {result["run_dir"]}
  {checkpoint}    the model, in Hugging Face layout
  examples/math/agent.py    the agent, which does not import AgentJet
"""


if __name__ == "__main__":
    main()
