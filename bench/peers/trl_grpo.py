"""TRL's GRPOTrainer on the workload in a folder, one step for each line on standard input.

    python trl_grpo.py FOLDER SEED

Runs in an environment with TRL; `bench/local.py` starts it. After each step it writes a line of JSON: CPU ``seconds``
of all threads, the mean ``reward``, the number of sampled ``tokens``, and the seconds of ``generation``. It exits when
its input ends.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

FOREVER = 10**6


def main() -> None:
    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # the trainer prints
        train(folder, seed, out)


def train(folder: Path, seed: int, out: Any) -> None:
    """Train until the input ends."""
    work = json.loads((folder / "work.json").read_text())
    tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
    prompts = [[*task.get("shown", ()), {"role": "user", "content": task["query"]}] for task in tasks]
    rows = {"prompt": prompts, "answer": [task["answer"] for task in tasks]}
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    steps = StepByStep(out)

    def reward(completions: list[Any], answer: list[str], completion_ids: list[Any], **_: Any) -> list[float]:
        steps.tokens = sum(map(len, completion_ids))
        texts = [completion[0]["content"] for completion in completions]
        rewards = [reward_of(a, text) for a, text in zip(answer, texts, strict=True)]
        steps.reward = sum(rewards) / len(rewards)
        return rewards

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config(work, seed, folder),
        train_dataset=Dataset.from_dict(rows),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[steps],
    )
    generate = model.generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.process_time()
        try:
            return generate(*args, **kwargs)
        finally:
            steps.generation += time.process_time() - started

    model.generate = timed
    trainer.train()


def config(work: dict[str, Any], seed: int, folder: Path) -> GRPOConfig:
    """The settings of the workload; features that cost time and are not needed are off."""
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=seed,
        use_cpu=True,
        bf16=work["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        max_steps=FOREVER,
        per_device_train_batch_size=work["rows"],
        gradient_accumulation_steps=work["groups"] * work["members"] // work["rows"],
        num_generations=work["members"],
        max_completion_length=work["max_tokens"],
        loss_type="grpo",
        scale_rewards="group",
        beta=0.0,
        epsilon=work["clip"],
        temperature=1.0,
        learning_rate=work["learning_rate"],
        lr_scheduler_type="constant",
        adam_epsilon=work["adam_epsilon"],
        weight_decay=0.0,
        max_grad_norm=work["max_grad_norm"],
        logging_steps=FOREVER,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )


def reward_of(answer: str, text: str) -> float:
    """The same as `grpo_work.reward`."""
    return float(text.strip() == answer) if answer else sum(text.encode()) % 97 / 97


class StepByStep(TrainerCallback):  # type: ignore[misc]
    """Starts each step when a line has been read, and reports it."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.reward = 0.0
        self.tokens = 0
        self.generation = 0.0
        self._started = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        return self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        seconds = time.process_time() - self._started
        line = {
            "seconds": seconds,
            "reward": self.reward,
            "tokens": self.tokens,
            "generation": self.generation,
        }
        print(json.dumps(line), file=self.out, flush=True)
        return self._wait(control)

    def _wait(self, control: Any) -> Any:
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.generation = 0.0
        self._started = time.process_time()
        return control


if __name__ == "__main__":
    main()
