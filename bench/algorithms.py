"""Checks that every algorithm learns: digit sums (25 tasks) on the local backbone, from the same tiny model.

    python bench/algorithms.py            # all
    python bench/algorithms.py rloo gspo  # some

The model, 0.2 M parameters created here, is fine-tuned on correct answers, then on answers of which half are random, so
it answers only some of the sums correctly. Each algorithm then takes the same steps with the same settings and its own
defaults. ``sft`` learns from correct transcripts instead, ``dpo-file`` from pairs of the correct answer and a wrong one
of the model's own, as `ajet dpo` does, and ``distillation`` from a teacher: the model before it was fine-tuned on random
answers. Last line: one JSON object with each algorithm's accuracy before and after, its steps and CPU seconds (including
validation).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEPS, BATCH_SIZE, GROUP_SIZE = 120, 8, 8
RATE, EPSILON = 1e-3, 1e-4
RIGHT = 0.5
"""Share of correct, not random, answers in the transcripts that degrade the model."""
TASKS = [(a, b) for a in range(5) for b in range(5)]
FROM_A_FILE = "dpo-file"
BETA, PASSES, GENTLE_RATE = 0.5, 4, 3e-4
"""Of ``dpo-file``: at the rate of the other algorithms, both answers of a pair become less likely."""
VALIDATIONS = 12
"""Episodes per task in a validation."""
SETTINGS: dict[str, dict[str, Any]] = {
    "distillation": {"train.reference": "teacher"},
    "sdpo": {"train.algorithm": {"type": "sdpo", "solution": 1.0}},
}
"""Settings that an algorithm requires besides its name. The judge says nothing in words: ``sdpo`` has the right answers of siblings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("algorithms", nargs="*", help="default: all that are installed")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.steps, arguments.seed)
        found = {name: bench.learn(name) for name in arguments.algorithms or [*installed(), FROM_A_FILE]}
    print(json.dumps(found))


def installed() -> list[str]:
    """The names of all algorithms."""
    from ajet.plugins import load_plugins

    return [name for kind, name in load_plugins().classes if kind == "algorithm"]


@dataclass
class Bench:
    """A folder with tasks, the initial model and the teacher."""

    folder: Path
    steps: int
    seed: int

    def __post_init__(self) -> None:
        rows = [{"id": f"{a}+{b}", "query": f"{a}+{b}=", "answer": a + b} for a, b in TASKS]
        write(self.folder / "train.jsonl", rows)
        many = [{**row, "id": f"{row['id']} {i}"} for i in range(VALIDATIONS) for row in rows]
        write(self.folder / "validation.jsonl", many)
        make_model(self.folder / "blank", self.seed)
        right = [(a, b, a + b) for a, b in TASKS] * 40
        self.teacher = self.fine_tune(self.folder / "blank", "teacher", right, epochs=7)
        rng = random.Random(self.seed)
        habits = [
            (a, b, a + b if rng.random() < RIGHT else rng.randrange(9)) for _ in range(30) for a, b in TASKS
        ]
        self.model = self.fine_tune(self.teacher, "model", habits, epochs=1)

    def learn(self, name: str) -> dict[str, Any]:
        """Train with one algorithm; returns its figures for the last line."""
        settings = {
            key: str(self.teacher) if value == "teacher" else value
            for key, value in SETTINGS.get(name, {}).items()
        }
        started = time.process_time()
        if name == "sft":
            figures = self.imitate()
        elif name == FROM_A_FILE:
            figures = self.prefer()
        else:
            job = self.job(name, self.model, settings | {"train.steps": self.steps})
            result = job.backbone.run(job)
            figures = {
                "before": result.before["accuracy"],
                "after": result.after["accuracy"],
                "steps": result.steps,
            }
        figures["cpu_seconds"] = round(time.process_time() - started, 1)
        print(name, figures, flush=True)
        return figures

    def imitate(self) -> dict[str, Any]:
        """Supervised fine-tuning on correct answers."""
        return self.compare(
            self.fine_tune(self.model, "right", [(a, b, a + b) for a, b in TASKS] * 16, epochs=1)
        )

    def prefer(self) -> dict[str, Any]:
        """Preference optimization on pairs of the correct answer and a wrong one of the model's own, as in the paper."""
        from ajet.interfaces.progress import Silent
        from ajet.learning.algorithms import DPO
        from ajet.runs.train import dpo, evaluate

        evaluate(self.job(FROM_A_FILE, self.model, {"train.algorithm": "dpo"}))
        (journal,) = (self.folder / f"runs-{FROM_A_FILE}").glob("*/episodes.jsonl")
        episodes = map(json.loads, journal.read_text().splitlines())
        sums = {f"{a}+{b}=": str(a + b) for a, b in TASKS}
        rows = [
            {"prompt": query, "chosen": sums[query], "rejected": episode["response"]}
            for episode in episodes
            if not episode["is_success"] and (query := f"{episode['task'].split()[0]}=")
        ]
        write(self.folder / "pairs.jsonl", rows)
        model = dpo(
            backbone=self.job("dpo", self.model, {}).backbone,
            model=str(self.model),
            pairs=self.folder / "pairs.jsonl",
            output=self.folder / "preferred",
            algorithm=DPO(beta=BETA),
            epochs=PASSES,
            batch_size=25,
            learning_rate=GENTLE_RATE,
            seed=self.seed,
            progress=Silent(),
        )
        return self.compare(model)

    def compare(self, model: Path) -> dict[str, Any]:
        """The figures of a checkpoint that was not trained by a job."""
        from ajet.runs.train import evaluate

        before, after = (evaluate(self.job("sft", m, {})) for m in (self.model, model))
        return {
            "before": before["accuracy"],
            "after": after["accuracy"],
            "steps": int(model.name.rpartition("_")[2]),
        }

    def fine_tune(self, model: Path, name: str, sums: list[tuple[int, int, int]], epochs: int) -> Path:
        """The checkpoint of a model after fine-tuning on these sums, in the folder ``name``."""
        from ajet.interfaces.progress import Silent
        from ajet.runs.train import sft

        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"{a}+{b}="},
                    {"role": "assistant", "content": str(answer)},
                ]
            }
            for a, b, answer in sums
        ]
        write(self.folder / f"{name}.jsonl", rows)
        output = self.folder / name
        if not output.exists():
            sft(
                backbone=self.job("sft", model, {}).backbone,
                model=str(model),
                transcripts=self.folder / f"{name}.jsonl",
                output=output,
                epochs=epochs,
                batch_size=25,
                learning_rate=2e-3,
                seed=self.seed,
                progress=Silent(),
            )
        return max((output / "checkpoints").iterdir())

    def job(self, algorithm: str, model: Path, settings: dict[str, Any]) -> Any:
        """The job of one algorithm, as `ajet run` reads it."""
        from ajet.job.config import Layers
        from ajet.job.prepare import prepare

        values = {
            "task.reader": str(self.folder / "train.jsonl"),
            "task.validation": str(self.folder / "validation.jsonl"),
            "workflow": f"{HERE / 'digit_sums.py'}:run",
            "model": str(model),
            "rollout.group_size": GROUP_SIZE,
            "rollout.sampling.max_tokens": 8,
            "train.algorithm": algorithm,
            "train.batch_size": BATCH_SIZE,
            "train.learning_rate": RATE,
            "train.adam_epsilon": EPSILON,
            "train.save_every": 10**6,
            "eval.episodes": len(TASKS) * VALIDATIONS,
            "eval.sampling.max_tokens": 8,
            "run.dir": str(self.folder / f"runs-{algorithm}"),
            "run.seed": self.seed,
            "run.deterministic": True,
            "backbone.local.threads": 1,
            "backbone.local.device": "cpu",
        }
        layers = Layers()
        for key, value in (values | settings).items():
            layers.set(key, value, "bench", Path.cwd())
        return prepare(layers)


def make_model(folder: Path, seed: int) -> None:
    """A small Qwen3 with the starter's tokenizer and random weights."""
    import torch
    from transformers import AutoModelForCausalLM

    from ajet_local.starter.calculator import Calculator

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    tokenizer = Calculator().tokenizer(seed)[0]
    config = Calculator().architecture(tokenizer)
    config.hidden_size, config.intermediate_size = 64, 128
    config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads = 2, 2, 2
    config.layer_types = config.layer_types[:2]
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
