"""vLLM beside a trainer on one GPU: the contract of engines, what it frees while it sleeps, how long new weights take, and whether it
then samples from them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ajet.interfaces.progress import Silent
from ajet.testing.conformance import ENGINE_CHECKS, Subject
from ajet.types import GenerateRequest, Sample, Sampling, Span
from ajet_local.modeling import load_model
from ajet_local.plan import score
from ajet_vllm.plugin import VLLMEnginePlugin
from prove.part import Options, main, used_on

ROUNDS = 3
LARGE = 0.1
"""The mean difference of logprobs that says that vLLM does not sample from the weights; a run then has the alarm `logprob_gap`."""
PROMPT, ANSWER, COUNT = 128, 128, 32


def run(options: Options) -> dict[str, Any]:
    """Memory in GiB, seconds, and the difference of logprobs. Raises RuntimeError if vLLM breaks the contract, samples from old
    weights, or frees less than its cache."""
    return asyncio.run(_contract(options)) | asyncio.run(_measured(options))


async def _contract(options: Options) -> dict[str, Any]:
    """The checks of `ajet.testing.conformance`, on the small model in float32."""
    plugin = VLLMEnginePlugin(dtype="float32", kv_cache_gib=0.1, options={"enforce_eager": True})
    engine = plugin.build(str(options.small), 0, Silent())
    await engine.start()
    failures: list[str] = []
    try:
        for check in ENGINE_CHECKS:
            try:
                # On a GPU, vLLM's attention multiplies float32 in TF32.
                await check(Subject(engine, tolerance=1e-4 if options.reduced else 2e-2))
            except Exception as error:
                failures.append(f"{check.__name__}: {' '.join(repr(error).split())}")
    finally:
        await engine.close()
    if failures:
        raise RuntimeError("; ".join(failures))
    return {"checks_passed": len(ENGINE_CHECKS)}


async def _measured(options: Options) -> dict[str, Any]:
    cache = (1 << 28) if options.reduced else (8 << 30)
    model = load_model(options.large, options.device, torch.float32)[0]
    # vLLM chooses its kernels for bfloat16 by the CPU, and some CPUs get one that crashes.
    dtype = torch.float32 if options.reduced else torch.bfloat16
    used = used_on(options.device)
    alone = used()
    engine = VLLMEnginePlugin().build_shared(
        str(options.large),
        0,
        Silent(),
        dtype=str(dtype).removeprefix("torch."),
        cache=cache,
        context=512,
    )
    started = time.perf_counter()
    await engine.start()
    figures: dict[str, Any] = {"seconds_start": time.perf_counter() - started}
    gaps = []
    try:
        for version in range(ROUNDS):
            if version:
                torch.cuda.empty_cache()  # of the logprobs below; does nothing without CUDA
                figures["awake_gib"] = (used() - alone) / 2**30
                await engine.sleep()
                figures[f"asleep_gib_{version}"] = (used() - alone) / 2**30
                with torch.no_grad():  # an update: the output is another one
                    for parameter in model.parameters():
                        parameter.mul_(1.0 + 0.05 * torch.randn_like(parameter))
                started = time.perf_counter()
                weights = {name: value.to("cpu", dtype) for name, value in model.state_dict().items()}
                await engine.load_weights(weights, version)
                figures["seconds_new_weights"] = time.perf_counter() - started
            samples = await _sampled(engine)
            with torch.autocast(options.device.type, dtype=torch.bfloat16, enabled=not options.reduced):
                found = score(model, samples, 4096)
            gaps += [f[s.mask] - s.logprobs[s.mask] for f, s in zip(found, samples, strict=True)]
            figures["logprob_diff_mean"] = float(np.abs(np.concatenate(gaps)).mean())
            if not figures["logprob_diff_mean"] <= LARGE:
                raise RuntimeError(f"version {version}: vLLM does not sample from the weights: {figures}")
    finally:
        await engine.close()
    figures["logprob_diff_max"] = float(np.abs(np.concatenate(gaps)).max())
    figures = {name: round(value, 4) for name, value in figures.items()}
    if not options.reduced and figures["awake_gib"] - figures[f"asleep_gib_{ROUNDS - 1}"] < cache / 2**30:
        raise RuntimeError(f"vLLM frees less than its cache: {figures}")
    return figures


async def _sampled(engine: Any) -> Sequence[Sample]:
    """Completions of random prompts, whose tokens are trained."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 500, PROMPT).astype(np.int32) for _ in range(COUNT)]
    asked = [GenerateRequest(p, Sampling(max_tokens=ANSWER, seed=n)) for n, p in enumerate(prompts)]
    answers = await asyncio.gather(*map(engine.generate, asked))
    return [_sample(prompt, got) for prompt, got in zip(prompts, answers, strict=True)]


def _sample(prompt: Any, got: Any) -> Sample:
    ids = np.concatenate([prompt, got.token_ids]).astype(np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs = np.full(len(ids), np.nan, dtype=np.float32)
    logprobs[mask] = got.logprobs
    on = mask.astype(np.float32)
    return Sample(ids, mask, logprobs, on, on, (Span(len(prompt), len(ids), 0, "agent", "policy"),))


if __name__ == "__main__":
    main(run, __doc__)
