"""The workloads for comparing the local backbone with TRL's GRPOTrainer: models, tasks, settings.

A workload is a folder that both sides read, so that they start with the same weights, render the same chats and take
the same steps.
"""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from shape import SHAPE
from transformers import AutoModelForCausalLM, Qwen3Config

from ajet_local.starter.calculator import Calculator

VOCABULARY = 1068
PROMPT, COMPLETION = 32, 32
SUMS = [(a, b) for a in range(5) for b in range(5)]


@dataclass(frozen=True, slots=True)
class Work:
    """``folder`` has ``model``, ``tasks.jsonl`` (id, query, answer, and ``shown``: messages before the query) and these settings as
    ``work.json``."""

    folder: str
    max_tokens: int
    learning_rate: float
    groups: int = 8
    members: int = 8
    adam_epsilon: float = 1e-8
    clip: float = 0.2
    max_grad_norm: float = 1.0
    dtype: str = "float32"
    """The type of computations; weights are float32."""
    rows: int = 64
    """Rows of one forward pass of TRL."""
    calls: int = 1
    """Calls of an episode, with the text ``between`` before each further one."""
    between: str = ""
    vllm: Mapping[str, Any] = field(default_factory=dict)
    """``utilization`` of the card's memory and ``context``, if vLLM samples for TRL."""

    def write(self, model: Any, tokenizer: Any, tasks: list[dict[str, Any]]) -> None:
        """Fill the folder."""
        model.save_pretrained(f"{self.folder}/model")
        tokenizer.save_pretrained(f"{self.folder}/model")
        self.write_tasks(tasks)

    def write_tasks(self, tasks: list[dict[str, Any]]) -> None:
        """Fill the folder, which has the model."""
        folder = Path(self.folder)
        (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
        (folder / "work.json").write_text(json.dumps(asdict(self)))


def fixed_length(folder: Path) -> Work:
    """Prompts of 32 tokens, and completions of exactly 32, because the model cannot stop."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed=0)
    never_stop(model, tokenizer.all_special_ids)
    rng = random.Random(0)
    tasks = [{"id": str(i), "query": query(tokenizer, rng), "answer": ""} for i in range(64)]
    work = Work(str(folder), max_tokens=COMPLETION, learning_rate=1e-6)
    work.write(model, tokenizer, tasks)
    return work


def digit_sums(folder: Path, seed: int) -> Work:
    """25 sums, and a model that answers two fifths of them correctly, and the others with a random digit."""
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, seed)
    imitate(model, tokenizer, 1.0, lambda right: right >= 0.9, rate=1e-3)
    imitate(model, tokenizer, 0.3, lambda right: right <= 0.39, rate=3e-4)
    tasks = [{"id": f"{a}+{b}", "query": f"{a}+{b}=", "answer": str(a + b)} for a, b in SUMS]
    work = Work(str(folder), max_tokens=8, learning_rate=3e-4, adam_epsilon=1e-4)
    work.write(model, tokenizer, tasks)
    return work


def make_tokenizer() -> Any:
    """The starter's tokenizer, with `VOCABULARY` tokens trained on words of random letters."""
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_lowercase, k=4)) for _ in range(500)]
    texts = [" ".join(rng.choices(words, k=50)) for _ in range(200)]
    tokenizer = Calculator().tokenizer(0)[0].train_new_from_iterator(texts, VOCABULARY, show_progress=False)
    assert len(tokenizer) == VOCABULARY, len(tokenizer)
    return tokenizer


def make_model(tokenizer: Any, seed: int) -> Any:
    """Qwen3 with 1.41 million parameters and random weights."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        **SHAPE,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


@torch.no_grad()
def never_stop(model: Any, tokens: list[int]) -> None:
    """Make some tokens impossible by changing only the model, so both sides sample as usual: the first channel of the
    residual stream becomes a constant, and the embeddings of these tokens oppose it."""
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    embeddings = model.get_input_embeddings().weight
    embeddings[:, 0] = 0.1
    embeddings[tokens, 0] = -100.0


def query(tokenizer: Any, rng: random.Random) -> str:
    """A random text whose chat has `PROMPT` tokens."""
    text = ""
    while (length := len(prompt_ids(tokenizer, text))) != PROMPT:
        text = text + rng.choice(string.ascii_lowercase + " ") if length < PROMPT else ""
    return text


def prompt_ids(tokenizer: Any, text: str) -> list[int]:
    """The token ids of a task's chat."""
    messages = [{"role": "user", "content": text}]
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return ids


def imitate(model: Any, tokenizer: Any, share: float, done: Callable[[float], bool], *, rate: float) -> None:
    """Supervised fine-tuning on all sums at once, until ``done`` accepts the mean probability of the correct answers. A
    ``share`` of the target answers is correct, the others are uniform over the digits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    digits = tokenizer.convert_tokens_to_ids(list(string.digits))
    prompts = [prompt_ids(tokenizer, f"{a}+{b}=") for a, b in SUMS]  # of one length, as digits are tokens
    right = torch.tensor([[digits[a + b]] for a, b in SUMS])
    answers = torch.zeros(len(SUMS), VOCABULARY)
    answers[:, digits] = (1 - share) / len(digits)
    answers.scatter_add_(1, right, torch.full(right.shape, share))
    ids = torch.cat([torch.tensor(prompts), right], dim=1)
    while True:
        first, second = model(input_ids=ids, logits_to_keep=2).logits.log_softmax(-1).unbind(1)
        if done(first.exp().gather(1, right).mean().item()):
            return
        loss = -(answers * first).sum(1).mean() - second[:, tokenizer.eos_token_id].mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def reward(answer: str, text: str) -> float:
    """1 for the task's answer, else 0. For a task without an answer, a number that the members of a group rarely share,
    so that every token is trained."""
    return float(text.strip() == answer) if answer else sum(text.encode()) % 97 / 97
