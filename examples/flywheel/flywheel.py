"""Serve, collect feedback, make tasks of it, train, and serve again.

    python flywheel.py --rounds 3

Each round serves the model of the round before with `ajet online explore`, lets simulated users use it, makes tasks of what
they liked or corrected, lets a model write more tasks like these, and trains on all of them. The last line is one JSON object
with the acceptance of each round.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from users import use
from writer import writing

import ajet
from ajet_online import StoreReader
from ajet_readers.generated import Generated

HERE = Path(__file__).resolve().parent
KEY = "flywheel-key-0123456789"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=200, help="requests of users in each round")
    parser.add_argument(
        "--variations", type=int, default=100, help="tasks that the writer adds in each round"
    )
    parser.add_argument("--model", default="starter", help="the model of the first round")
    parser.add_argument("--steps", type=int, default=50, help="training steps in each round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--writer", help="base URL of a model that writes tasks; default: a stand-in")
    parser.add_argument("--folder", type=Path, default=Path("flywheel"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    model, acceptance = options.model, []
    with writing() as stand_in:
        for number in range(options.rounds + 1):
            store = options.folder / f"round{number}.db"
            with serving(model, store, options.seed) as url:
                acceptance.append(use(url, KEY, options.requests, seed=1000 * options.seed + number))
            print(f"round {number}: users like {acceptance[-1]:.0%} of the replies", flush=True)
            if number == options.rounds:
                break
            tasks = rated_tasks(store)
            tasks += written_tasks(tasks, options.variations, options.writer or stand_in, options.folder)
            print(f"round {number}: training on {len(tasks)} tasks", flush=True)
            run = ajet.run(
                HERE / "job.yaml",
                model=model,
                tasks=tasks,
                steps=options.steps,
                seed=options.seed,
                run_dir=options.folder / "runs",
            )
            model = str(run.checkpoint)
    print(json.dumps({"acceptance": [round(share, 3) for share in acceptance]}))


def rated_tasks(store: Path) -> list[dict[str, Any]]:
    """The requests of users, with the replies that they liked or corrected as reference answers."""
    found = {t.query: t for t in StoreReader(store=str(store)).tasks() if "answer" in t.metadata}
    return [{"query": query, "answer": task.metadata["answer"]} for query, task in found.items()]


def written_tasks(tasks: list[dict[str, Any]], count: int, url: str, folder: Path) -> list[dict[str, Any]]:
    """New tasks in the style of these, written by a model."""
    examples = folder / "examples.jsonl"
    examples.write_text("".join(json.dumps(task) + "\n" for task in tasks[:8]))
    reader = Generated(
        model={"base_url": url, "model": "writer"},
        examples=examples,
        variations=count,
        similarity=1.0,
        drop_duplicates=True,
        cache=folder / "generated",
    )
    known = {task["query"] for task in tasks}
    new = [{"query": t.query, "answer": t.metadata["answer"]} for t in reader.tasks()]
    return [task for task in new if task["query"] not in known]


@contextmanager
def serving(model: str, store: Path, seed: int) -> Iterator[str]:
    """A block in which `ajet online explore` serves a model: its URL."""
    port = free_port()
    command = ["online", "explore", model, "--store", str(store), "--port", str(port), "--key", KEY]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "ajet", *command, "--seed", str(seed)], stdout=log, stderr=log
        )
        try:
            while process.poll() is None:
                try:
                    httpx.get(f"http://127.0.0.1:{port}/health")
                    break
                except httpx.HTTPError:
                    time.sleep(0.2)
            else:
                log.seek(0)
                raise SystemExit(log.read().decode())
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


if __name__ == "__main__":
    main()
