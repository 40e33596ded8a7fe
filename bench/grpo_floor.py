"""The floor of `bench/local.py`: a hand-written GRPO loop that computes the prompt of a group once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from grpo_work import Work, prompt_ids, reward
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from ajet.types import Metrics


class Floor:
    """Takes steps on a workload whose prompts have equal length and whose completions the model never ends."""

    def __init__(self, work: Work) -> None:
        self.work = work
        folder = Path(work.folder)
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "model")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
        tasks = [json.loads(line) for line in (folder / "tasks.jsonl").read_text().splitlines()]
        self.prompts = torch.tensor([prompt_ids(self.tokenizer, task["query"]) for task in tasks])
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=work.learning_rate,
            eps=work.adam_epsilon,
            weight_decay=0.0,
            fused=True,
        )

    def step(self) -> Metrics:
        """Take a step. Returns its CPU ``seconds``, those of ``generation``, and the number of sampled ``tokens``."""
        started = time.process_time()
        prompts = self.prompts[torch.randperm(len(self.prompts))[: self.work.groups]]
        completions = self._sample(prompts)
        generated = time.process_time()
        texts = self.tokenizer.batch_decode(completions, skip_special_tokens=True)
        rewards = torch.tensor([reward("", text) for text in texts]).view(-1, self.work.members)
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        self._learn(prompts, completions, advantages.view(-1, 1))
        return {
            "seconds": time.process_time() - started,
            "generation": generated - started,
            "tokens": float(completions.numel()),
        }

    def _prefilled(self, prompts: torch.Tensor) -> tuple[DynamicCache, torch.Tensor]:
        """The cache of each member, and the logits of its first token: float32[B, V]."""
        cache = DynamicCache(config=self.model.config)
        logits = self.model(input_ids=prompts, past_key_values=cache, logits_to_keep=1).logits[:, -1]
        cache.batch_repeat_interleave(self.work.members)
        return cache, logits.repeat_interleave(self.work.members, dim=0)

    @torch.no_grad()
    def _sample(self, prompts: torch.Tensor) -> torch.Tensor:
        """Completions, int64[B, T]."""
        cache, logits = self._prefilled(prompts)
        tokens: list[torch.Tensor] = []
        for number in range(self.work.max_tokens):
            tokens.append(torch.multinomial(logits.softmax(-1), 1))
            if number + 1 < self.work.max_tokens:
                logits = self.model(input_ids=tokens[-1], past_key_values=cache).logits[:, -1]
        return torch.cat(tokens, dim=1)

    def _learn(self, prompts: torch.Tensor, completions: torch.Tensor, advantages: torch.Tensor) -> None:
        """One optimizer step on the batch. It is the only one, so every ratio is 1."""
        cache, first = self._prefilled(prompts)
        logits = self.model(input_ids=completions[:, :-1], past_key_values=cache).logits
        logprobs = torch.cat([first[:, None], logits], dim=1).log_softmax(-1)
        new = logprobs.gather(2, completions[:, :, None])[:, :, 0]
        ratios = (new - new.detach()).exp()
        clipped = ratios.clamp(1 - self.work.clip, 1 + self.work.clip)
        (-torch.minimum(ratios * advantages, clipped * advantages).mean(1).mean()).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.work.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
