"""Where the time of a training step goes: samples of examples/math on the local backbone, with one thread for the model.

    pip install py-spy
    .venv/bin/python bench/step_profile.py

A job runs in a process of its own. Once it has done `SKIPPED` steps, py-spy takes samples of all its threads for `SECONDS`, which
leaves out imports, the model's loading and validation. A sample belongs to the innermost frame that is AgentJet's, the agent's or
that of the agent's client (the OpenAI SDK); PyTorch's frames count for the code that called it. Threads that wait do not count. Last
line: one JSON object with the shares of all samples.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "math"
SKIPPED, SECONDS, RATE = 3, 30, 250
OWNERS = {
    "agent and its client": r"openai/|httpx2?/|httpcore2?/|pydantic/|anyio/|agent\.py",
    "capture": r"ajet/(capture|chat|tracker)/",
    "scheduler": r"ajet/(rollout/(?!recorder|journal)|environments/|hookspecs)",
    "journal": r"ajet/rollout/(recorder|journal)|ajet/utils/files",
    "judge": r"ajet_judges/|ajet/interfaces/judge",
    "engine": r"ajet_local/(engine|sampling|scheduler|kv_cache|slots|stopping|completion|prefix|cached_attention|heap)",
    "training": r"ajet_local/|ajet_trees/|ajet/learning/|ajet/runs/",
}
"""Owner -> a pattern for the files of its frames; the first that fits counts."""
_OWNED = {name: re.compile(rf"\((?:{pattern})") for name, pattern in OWNERS.items()}
_WAITS = re.compile(
    r"^(\w+\.)?(wait|_wait|_worker|select|_do_waitpid|run) \((threading|asyncio|selectors|concurrent|ajet/rollout/watchdog)"
)
"""Innermost frames of threads that wait: not every system tells py-spy which threads run."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--py-spy", default=shutil.which("py-spy") or "py-spy", help="the program py-spy")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        samples = profile(Path(folder), options.seconds, options.py_spy)
    shares = shares_of(samples)
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        print(f"{name:24}{share:7.1%}")
    ours = sum(shares.get(name, 0.0) for name in ("capture", "scheduler", "journal"))
    print(json.dumps({"ours": round(ours, 3), **{name: round(share, 3) for name, share in shares.items()}}))


def profile(folder: Path, seconds: int, py_spy: str) -> list[tuple[list[str], int]]:
    """Stacks of the job's threads, outermost frame first, with how many samples had them."""
    work, raw = folder / "math", folder / "stacks.txt"
    shutil.copytree(EXAMPLE, work, ignore=shutil.ignore_patterns("runs", "tasks", "__pycache__"))
    subprocess.run(
        [sys.executable, "make_tasks.py", "--out", "tasks"], cwd=work, check=True, stdout=subprocess.DEVNULL
    )
    settings = (
        "train.steps=1000",
        "eval.every=0",
        "eval.episodes=8",
        "backbone.local.threads=1",
        "run.dir=runs",
    )
    job = [
        sys.executable,
        "-m",
        "ajet",
        "run",
        "job.yaml",
        *(part for one in settings for part in ("--set", one)),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(job, cwd=work, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            while steps_done(work) < SKIPPED:
                if process.poll() is not None:
                    raise SystemExit("the job ended before it was measured")
                time.sleep(0.2)
            take = [
                py_spy,
                "record",
                "--pid",
                str(process.pid),
                "--rate",
                str(RATE),
                "--duration",
                str(seconds),
            ]
            subprocess.run(
                [*take, "--format", "raw", "--output", str(raw)], check=True, stdout=subprocess.DEVNULL
            )
        finally:
            process.terminate()
    return [
        (stack.split(";"), int(count)) for stack, _, count in (line.rpartition(" ") for line in raw.open())
    ]


def steps_done(work: Path) -> int:
    """The training steps in the job's metrics."""
    lines = [line for file in work.glob("runs/*/metrics.jsonl") for line in file.read_text().splitlines()]
    return sum('"type": "train"' in line for line in lines)


def shares_of(samples: Iterable[tuple[Sequence[str], int]]) -> dict[str, float]:
    """The share of each owner in all samples of threads that run."""
    counts: Counter[str] = Counter()
    for frames, count in samples:
        if not _WAITS.match(frames[-1]):
            counts[owner(frames)] += count
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


def owner(frames: Sequence[str]) -> str:
    """The owner of a stack: that of its innermost frame with one; "other" if no frame has one."""
    for frame in reversed(frames):
        for name, pattern in _OWNED.items():
            if pattern.search(frame):
                return name
    return "other"


if __name__ == "__main__":
    main()
