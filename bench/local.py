"""Compares the local backbone with TRL's GRPOTrainer: same model and workload, alternating.

    make bench-local                        # all parts: about a quarter of an hour
    make bench-local ARGS="step --steps 10"  # some of them: step, learning, generation, tree

TRL runs in a separate process and environment (``--peer``). All times are CPU seconds of one thread, because other
load on the machine distorts any other clock.

Step: 8 prompts × 8 completions, 32 + 32 tokens, with an agent that sends raw HTTP through capture, then one that uses the
OpenAI SDK. Rounds of a few steps alternate with TRL and with the floor, a hand-written loop that computes each group's
prompt once. The floor shows what a step must cost; the benchmark fails if it takes more than `FLOOR` of TRL's step.
Learning: digit sums, from about two fifths correct until `RIGHT` of the last `WINDOW` steps' answers are. Generation and
tree: `generation.py` and `tree_training.py`. Last line: one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any, TextIO

os.environ.setdefault("OMP_NUM_THREADS", "1")

import generation
import grpo_work
import torch
import tree_training
from grpo_floor import Floor
from grpo_work import Work

from ajet import Logger
from ajet.types import Metrics

HERE = Path(__file__).resolve().parent
PEER = HERE.parent / ".venv-trl" / "bin" / "python"
PARTS = ("step", "learning", "generation", "tree")
FLOOR = 0.65
"""Maximum cost of a step of the floor, as a share of TRL's."""
STEPS, TURN, WARM_UP = 30, 3, 3
RIGHT, WINDOW, MAX_STEPS = 0.9, 20, 400


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--peer", default=str(PEER), help="Python of the environment with TRL; default: %(default)s"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help="number of measured steps of each side")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds in the learning part")
    options = parser.parse_args()
    parts = options.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not os.access(options.peer, os.X_OK):
        sys.exit(f"{options.peer}: not the Python of an environment with TRL. `make bench-local` makes one.")
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "step" in parts:
            figures |= compare_steps(Path(folder), options.peer, options.steps)
        if "learning" in parts:
            figures |= compare_learning(Path(folder), options.peer, options.seeds)
    if "generation" in parts:
        figures["generation_ratio_hf"] = generation.main(["--rounds", "15"])["generation_ratio_hf"]
    if "tree" in parts:
        figures |= tree_training.main([])
    print(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}, {os.cpu_count()} cores")
    print(json.dumps(figures))


# --------------------------------------------------------------------------- step


def compare_steps(folder: Path, peer: str, steps: int) -> dict[str, float]:
    """Ratios of a step's CPU time, in rounds that each have some steps of every side."""
    work = grpo_work.fixed_length(new_folder(folder, "step"))
    found: dict[str, float] = {}
    with running(peer, work, seed=0) as theirs:
        floor = Floor(work)
        print(f"{'':22}{'step ms':>9}{'sampled/s':>11}{'trained/s':>11}   breakdown in ms", flush=True)
        for agent, suffix in (("raw", ""), ("sdk", "_sdk")):
            clock = Clock()

            def turn(clock: Clock = clock) -> None:
                if len(clock.steps) % TURN == 0:
                    clock.others += [(theirs.step(), floor.step()) for _ in range(TURN)]

            clock.between = turn
            train(work, agent, clock, steps + WARM_UP, seed=0)
            own, others = clock.steps[WARM_UP:], clock.others[WARM_UP:]
            trl, by_hand = [a for a, _ in others], [b for _, b in others]
            show(f"ajet, {agent}", own)
            show("TRL", trl)
            show("floor", by_hand)
            found[f"step_ratio_trl{suffix}"] = ratio(own, trl)
            share = ratio(by_hand, trl)
            if share > FLOOR:
                sys.exit(
                    f"the floor takes {share:.2f} of TRL's step, more than {FLOOR}: it is not a floor, so the ratios mean nothing"
                )
    return found


def ratio(own: list[Metrics], others: list[Metrics]) -> float:
    """The ratio of the median seconds of a step."""
    return round(median(s["seconds"] for s in own) / median(s["seconds"] for s in others), 3)


def show(name: str, steps: list[Metrics]) -> None:
    """Print a line of the table: medians."""
    medians = {key: median(step[key] for step in steps) for key in steps[0]}
    parts = {key: value for key, value in medians.items() if key not in ("seconds", "tokens", "reward")}
    training = medians.get("training", medians["seconds"] - medians["generation"])
    print(
        f"{name:22}{medians['seconds'] * 1000:9.0f}{medians['tokens'] / medians['generation']:11,.0f}"
        f"{medians['tokens'] / training:11,.0f}   "
        + ", ".join(f"{key} {value * 1000:.0f}" for key, value in parts.items()),
        flush=True,
    )


# --------------------------------------------------------------------------- learning


def compare_learning(folder: Path, peer: str, seeds: int) -> dict[str, float]:
    """Ratios of CPU seconds and of steps until `RIGHT` of the answers are correct, from medians over the seeds."""
    found: dict[str, list[tuple[float, int]]] = {"TRL": [], "raw": [], "sdk": []}
    for seed in range(seeds):
        work = grpo_work.digit_sums(new_folder(folder, f"sums{seed}"), seed)
        clocks = {name: learn(work, name, seed) for name in ("raw", "sdk")}
        with running(peer, work, seed) as theirs:
            found["TRL"].append(theirs.learn())
        for name, clock in clocks.items():
            found[name].append(reached(clock.steps))
        print(
            f"seed {seed}, CPU seconds and steps to {RIGHT:.0%}: { ({n: r[-1] for n, r in found.items()}) }",
            flush=True,
        )
        for name, clock in clocks.items():
            show(f"ajet, {name}", clock.steps)
    seconds = {name: median(r[0] for r in runs) for name, runs in found.items()}
    steps = {name: median(r[1] for r in runs) for name, runs in found.items()}
    return {
        "cpu_to_90_ratio_trl": round(seconds["raw"] / seconds["TRL"], 3),
        "steps_to_90_ratio_trl": round(steps["raw"] / steps["TRL"], 3),
        "cpu_to_90_ratio_trl_sdk": round(seconds["sdk"] / seconds["TRL"], 3),
    }


def learn(work: Work, agent: str, seed: int) -> Clock:
    """Train until `learned`; returns the steps."""
    clock = Clock()
    clock.enough = lambda: learned(clock.steps)
    train(work, agent, clock, MAX_STEPS, seed)
    return clock


def learned(steps: list[Metrics]) -> bool:
    """Whether `RIGHT` of the answers in the last `WINDOW` steps are correct."""
    return len(steps) >= WINDOW and mean(step["reward"] for step in steps[-WINDOW:]) >= RIGHT


def reached(steps: list[Metrics]) -> tuple[float, int]:
    """(CPU seconds, steps) of a run. Exits if it has not learned."""
    if not learned(steps):
        sys.exit(
            f"not learned in {len(steps)} steps: {[round(step['reward'], 2) for step in steps[-WINDOW:]]}"
        )
    return round(sum(step["seconds"] for step in steps), 2), len(steps)


# --------------------------------------------------------------------------- the two sides


class Peer:
    """TRL in a separate process, which takes a step on request."""

    def __init__(self, process: subprocess.Popen[str], stderr: TextIO) -> None:
        self._process = process
        self._stderr = stderr

    def step(self) -> Metrics:
        """Take a step. Returns its CPU ``seconds``, ``reward``, ``tokens`` and seconds of ``generation``."""
        assert self._process.stdin and self._process.stdout
        with suppress(BrokenPipeError):  # it has ended, so the read below returns nothing
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"'):  # vLLM logs there, too
                step: Metrics = json.loads(line)
                return step
        code = self._process.wait()
        self._stderr.seek(0)
        sys.exit(f"TRL ended with exit code {code}: {self._stderr.read().strip().rpartition(chr(10))[2]}")

    def learn(self) -> tuple[float, int]:
        """Take steps until `learned`. Returns CPU seconds and steps."""
        steps: list[Metrics] = []
        while not learned(steps) and len(steps) < MAX_STEPS:
            steps.append(self.step())
        return reached(steps)


@contextmanager
def running(peer: str, work: Work, seed: int) -> Iterator[Peer]:
    """Start a peer; it is killed at the end of the block."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [peer, str(HERE / "peers" / "trl_grpo.py"), work.folder, str(seed)]
    with (
        tempfile.TemporaryFile("w+") as stderr,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        try:
            yield Peer(process, stderr)
        finally:
            process.kill()
            with suppress(BrokenPipeError):
                process.communicate()


class Enough(Exception):
    """Raised to end training once `learned`."""


class Clock:
    """Measures the cost of each step, without the time of ``between``, which runs after each step."""

    def __init__(self) -> None:
        self.steps: list[Metrics] = []
        self.others: list[tuple[Metrics, Metrics]] = []
        self.between: Callable[[], None] = lambda: None
        self.enough: Callable[[], bool] = lambda: False
        self._last = 0.0
        self._parts: dict[str, float] = {}
        self._engine = 0
        self._engine_last = 0.0

    def note(self, metrics: Metrics) -> None:
        """Record the step that has just ended, and start the next."""
        seconds, engine = time.process_time() - self._last, self._engine_seconds() - self._engine_last
        training, sampling = self._parts["training"], self._parts["generation"]
        self.steps.append(
            {
                "seconds": seconds,
                "reward": metrics["reward"],
                "tokens": metrics["tokens_trained"] + metrics["tokens_zero_advantage"],
                "rollout": seconds - engine - training,
                "capture": engine - sampling,
                "generation": sampling,
                "training": training,
            }
        )
        self.between()
        self.begin()

    def begin(self) -> None:
        """Start measuring a step."""
        self._parts = {"training": 0.0, "generation": 0.0}
        self._engine_last = self._engine_seconds()
        self._last = time.process_time()

    def watch(self, trainer: Any) -> None:
        """Time a trainer's updates and its engine's passes, each by the CPU clock of its thread."""
        scheduler = trainer.engine.scheduler
        update, step = trainer.update, scheduler.step

        def timed(part: str, function: Callable[..., Any], *arguments: Any) -> Any:
            started = time.thread_time()
            result = function(*arguments)
            self._parts[part] += time.thread_time() - started
            return result

        def timed_update(batch: Any) -> Metrics:
            if self.enough():
                raise Enough
            metrics: Metrics = timed("training", update, batch)
            return metrics

        def timed_step(version: int) -> None:
            self._engine = self._engine or time.pthread_getcpuclockid(threading.get_ident())
            timed("generation", step, version)

        trainer.update, scheduler.step = timed_update, timed_step

    def _engine_seconds(self) -> float:
        """CPU time of the engine's thread, on which most of capture runs too."""
        return time.clock_gettime(self._engine) if self._engine else 0.0


class ToClock(Logger):
    """Reports each step to a clock."""

    name = "clock"
    clock: Any

    def log(self, run_dir: Path, step: int, metrics: Metrics) -> None:
        self.clock.note(metrics)


def train(work: Work, agent: str, clock: Clock, steps: int, seed: int) -> None:
    """Train as `ajet run` does, on the local backbone."""
    from ajet.job.config import Layers
    from ajet.job.prepare import prepare
    from ajet.runs.train import train_job

    values = {
        "task.reader": f"{work.folder}/tasks.jsonl",
        "workflow": f"{HERE / 'grpo_agents.py'}:{agent}",
        "model": f"{work.folder}/model",
        "rollout.group_size": work.members,
        "rollout.sampling.max_tokens": work.max_tokens,
        "train.algorithm": "grpo",
        "train.steps": steps,
        "train.batch_size": work.groups,
        "train.learning_rate": work.learning_rate,
        "train.adam_epsilon": work.adam_epsilon,
        "train.max_grad_norm": work.max_grad_norm,
        "train.save_every": 10**6,
        "run.dir": f"{work.folder}/runs-{agent}",
        "run.seed": seed,
        "backbone.local.threads": 1,
        "backbone.local.device": "cpu",
        "backbone.local.dtype": work.dtype,
    }
    layers = Layers()
    for key, value in values.items():
        layers.set(key, value, "bench", Path.cwd())
    job = prepare(layers)
    trainer = job.backbone.trainer(
        job.model, job.config.train, seed=seed, deterministic=False, progress=job.progress
    )
    clock.watch(trainer)
    clock.begin()
    with suppress(Enough):
        train_job(replace(job, loggers=(ToClock(clock=clock),)), trainer)


def new_folder(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir()
    return path


if __name__ == "__main__":
    main()
