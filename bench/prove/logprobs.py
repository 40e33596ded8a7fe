"""How far the logprobs that an engine records in bfloat16 are from those that the trainer computes from the same weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ajet.learning.gap import LARGE
from ajet.types import GenerateRequest, Sample, Sampling, Span
from ajet_local.modeling import load_model
from ajet_local.plan import score
from prove.engines import opened
from prove.part import Options, main

PROMPT, ANSWER, COUNT = 128, 128, 32


def run(options: Options) -> dict[str, Any]:
    """Mean and maximum of the difference over all sampled tokens. Raises RuntimeError if the mean is worth a warning."""
    samples = asyncio.run(_sampled(options))
    recorded = np.concatenate([s.logprobs[s.mask] for s in samples])
    model = load_model(options.large, options.device, torch.float32)[0]
    figures: dict[str, Any] = {"tokens": len(recorded)}
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", None)):
        with torch.autocast(options.device.type, dtype=dtype, enabled=dtype is not None):
            found = score(model, samples, 4096)
        gaps = np.abs(np.concatenate([f[s.mask] for f, s in zip(found, samples, strict=True)]) - recorded)
        figures |= {f"mean_to_{name}": float(gaps.mean()), f"max_to_{name}": float(gaps.max())}
    if figures["mean_to_bfloat16"] > LARGE:
        raise RuntimeError(f"the trainer's logprobs differ too much: {figures}")
    return {name: round(value, 5) for name, value in figures.items()}


async def _sampled(options: Options) -> Sequence[Sample]:
    """Completions of random prompts, with the logprobs of the engine in the type of a GPU."""
    rng = np.random.default_rng(0)
    name = options.extra[0]
    # vLLM chooses its kernels for bfloat16 by the CPU, and some CPUs get one that crashes.
    dtype = "float32" if options.reduced and name == "vllm" else "bfloat16"
    async with opened(name, options.large, options, dtype) as engine:
        prompts = [rng.integers(0, 500, PROMPT).astype(np.int32) for _ in range(COUNT)]
        asked = [
            GenerateRequest(prompt, Sampling(max_tokens=ANSWER, seed=n)) for n, prompt in enumerate(prompts)
        ]
        answers = await asyncio.gather(*map(engine.generate, asked))
    return [sample_of(prompt, got) for prompt, got in zip(prompts, answers, strict=True)]


def sample_of(prompt: Any, got: Any) -> Sample:
    """A prompt and its completion, whose tokens are trained."""
    ids = np.concatenate([prompt, got.token_ids]).astype(np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    logprobs[mask] = got.logprobs
    on = mask.astype(np.float32)
    return Sample(ids, mask, logprobs, on, on, (Span(len(prompt), len(ids), 0, "agent", "policy"),))


if __name__ == "__main__":
    main(run, __doc__)
