"""Checks that the math example learns with Trinity as its trainer, on this CPU.

    make verify-trinity

It runs examples/math/job.yaml as it is, with `--backbone trinity`. Last line: one JSON object with ``accuracy_before`` and
``accuracy_after``, of sampled answers. It fails if the accuracy rises by less than `GAIN`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from ajet.job.config import Layers, read_job_file
from ajet.job.prepare import prepare
from ajet.reports.progress import make_progress
from ajet.runs.restarts import run_job

MATH = Path(__file__).resolve().parent.parent / "examples" / "math"
GAIN = 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the job")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ajet-verify-trinity-") as folder:
        command = [
            sys.executable,
            str(MATH / "make_tasks.py"),
            "--seed",
            str(arguments.seed),
            "--out",
            folder,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        layers = Layers()
        layers.add(read_job_file(MATH / "job.yaml"), "job.yaml", MATH)
        settings = {
            "backbone.name": "trinity",
            "run.seed": arguments.seed,
            "run.dir": str(Path.cwd() / "runs" / "verify-trinity"),
            "task.reader.path": f"{folder}/train.jsonl",
            "task.validation.path": f"{folder}/validation.jsonl",
            **dict(pair.split("=", 1) for pair in arguments.set),
        }
        for key, value in settings.items():
            layers.set(key, value, "bench", Path.cwd())
        job = prepare(layers)
        with make_progress() as progress:
            result = run_job(job.with_progress(progress))
    before, after = result.before["accuracy"], result.after["accuracy"]
    figures = {
        "accuracy_before": before,
        "accuracy_after": after,
        "greedy_before": result.before["greedy_accuracy"],
        "greedy_after": result.after["greedy_accuracy"],
        "steps": result.steps,
        "train_seconds": round(result.train_seconds, 1),
    }
    print(json.dumps(figures))
    sys.exit(0 if after - before >= GAIN else 1)


if __name__ == "__main__":
    main()
