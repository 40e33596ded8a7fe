"""TRL's GRPOTrainer on the workload in a folder, one step for each line on standard input.

    python trl_grpo.py FOLDER SEED

Runs in an environment with TRL; `bench/local.py` and `bench/beside_trl.py` start it. After each step it writes a line of JSON: CPU
``seconds`` of all threads and ``wall`` seconds, the mean ``reward``, the number of sampled ``tokens``, the CPU seconds of
``generation`` and its wall seconds, ``sampling``, those of new weights for vLLM, ``sync``, and the most bytes that were ``resident`` so
far. It exits when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import resource
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
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    steps = StepByStep(out)
    calls = work.get("calls", 1)
    between = prompt_of(tokenizer, [{"role": "user", "content": work["between"]}]) if calls > 1 else []
    given = len(between) * (calls - 1)

    def reward(completions: list[Any], answer: list[str], completion_ids: list[Any], **_: Any) -> list[float]:
        steps.tokens = sum(map(len, completion_ids)) - len(completion_ids) * given
        texts = [completion[0]["content"] for completion in completions]
        rewards = [reward_of(a, text) for a, text in zip(answer, texts, strict=True)]
        steps.reward = sum(rewards) / len(rewards)
        return rewards

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config(work, seed, folder),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer,
        callbacks=[steps],
        rollout_func=agents(calls, between, tokenizer) if calls > 1 else None,
    )
    sampler = trainer.vllm_generation if trainer.use_vllm else model
    generate = sampler.generate

    def timed(*args: Any, **kwargs: Any) -> Any:
        started, began, synced = time.process_time(), time.perf_counter(), steps.sync
        try:
            return generate(*args, **kwargs)
        finally:
            steps.generation += time.process_time() - started
            steps.sampling += time.perf_counter() - began - (steps.sync - synced)

    sampler.generate = timed
    if trainer.use_vllm:
        # TRL puts vLLM to sleep after each call, without its weights, so a further call of an episode begins with them again.
        sync = sampler.sync_weights

        def synced() -> None:
            began = time.perf_counter()
            sync()
            steps.sync += time.perf_counter() - began

        sampler.sync_weights = synced
    trainer.train()


def agents(calls: int, between: list[int], tokenizer: Any) -> Any:
    """Episodes of several calls, each with a longer context: what TRL calls a rollout function. An episode is one row, in which what
    came between the answers is not trained."""

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        begun = [prompt_of(tokenizer, messages) for messages in prompts]
        rows: list[list[int]] = [[] for _ in begun]
        logprobs: list[list[float]] = [[] for _ in begun]
        masks: list[list[int]] = [[] for _ in begun]
        for call in range(calls):
            given = between if call else []
            contexts = [[*prompt, *row, *given] for prompt, row in zip(begun, rows, strict=True)]
            for i, (answer, known) in enumerate(sampled(trainer, contexts, tokenizer.pad_token_id)):
                rows[i] += [*given, *answer]
                logprobs[i] += [*[0.0] * len(given), *known]
                masks[i] += [*[0] * len(given), *[1] * len(answer)]
        known_all = logprobs if trainer.use_vllm else None
        return {"prompt_ids": begun, "completion_ids": rows, "logprobs": known_all, "env_mask": masks}

    return rollout


def prompt_of(tokenizer: Any, messages: list[Any]) -> list[int]:
    """The ids of a chat that the model continues."""
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def sampled(trainer: Any, contexts: list[list[int]], padding: int) -> list[tuple[list[int], list[float]]]:
    """An answer to each context, and its logprobs, which only vLLM gives."""
    if trainer.use_vllm:
        _, ids, logprobs, _ = trainer.vllm_generation.generate(contexts, None, num_generations=1)
        return [(row, [token[0] for token in known]) for row, known in zip(ids, logprobs, strict=True)]
    length = max(map(len, contexts))
    inputs = torch.tensor([[*[padding] * (length - len(c)), *c] for c in contexts])
    real = torch.tensor([[*[0] * (length - len(c)), *[1] * len(c)] for c in contexts])
    with torch.no_grad():
        found = trainer.model.generate(
            inputs, attention_mask=real, generation_config=trainer.generation_config
        )
    return [(row, [0.0] * len(row)) for row in found[:, length:].tolist()]


def config(work: dict[str, Any], seed: int, folder: Path) -> GRPOConfig:
    """The settings of the workload; features that cost time and are not needed are off."""
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        seed=seed,
        use_cpu=not work.get("vllm"),
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
        **beside_vllm(work["vllm"] if work.get("vllm") else {}),
    )


def beside_vllm(memory: dict[str, Any]) -> dict[str, Any]:
    """The settings with which vLLM samples in the trainer's process, and sleeps while it trains."""
    if not memory:
        return {}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_enable_sleep_mode": True,
        "vllm_gpu_memory_utilization": memory["utilization"],
        "vllm_max_model_length": memory["context"],
        "vllm_importance_sampling_correction": False,
    }


def reward_of(answer: str, text: str) -> float:
    """The same as `grpo_work.reward`."""
    return float(text.strip() == answer) if answer else sum(text.encode()) % 97 / 97


class StepByStep(TrainerCallback):  # type: ignore[misc]
    """Starts each step when a line has been read, and reports it."""

    def __init__(self, out: Any) -> None:
        self.out = out
        self.reward = 0.0
        self.tokens = 0
        self.generation = self.sampling = self.sync = 0.0
        self._started = self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        return self._wait(control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        line = {
            "seconds": time.process_time() - self._started,
            "wall": time.perf_counter() - self._began,
            "reward": self.reward,
            "tokens": self.tokens,
            "generation": self.generation,
            "sampling": self.sampling,
            "sync": self.sync,
            "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        }
        print(json.dumps(line), file=self.out, flush=True)
        return self._wait(control)

    def _wait(self, control: Any) -> Any:
        if not sys.stdin.readline():
            control.should_training_stop = True
        self.generation = self.sampling = self.sync = 0.0
        self._started, self._began = time.process_time(), time.perf_counter()
        return control


if __name__ == "__main__":
    main()
