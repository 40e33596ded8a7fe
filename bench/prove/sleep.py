"""vLLM beside a trainer on one GPU: what it frees while it sleeps, how long new weights take, and whether it then samples from them."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import numpy as np
import torch

from ajet.interfaces.progress import Silent
from ajet.types import GenerateRequest, Sampling
from ajet_local.modeling import load_model
from ajet_local.plan import score
from ajet_vllm.plugin import VLLMEnginePlugin
from prove.logprobs import sample_of
from prove.part import Options, main, used_on

ROUNDS = 2


def run(options: Options) -> dict[str, Any]:
    """Memory in GiB and seconds. Raises RuntimeError if vLLM samples from old weights, or frees less than its cache."""
    return asyncio.run(_measured(options))


async def _measured(options: Options) -> dict[str, Any]:
    cache = (1 << 28) if options.reduced else (8 << 30)
    model = load_model(options.large, options.device, torch.float32)[0]
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
    await engine.start()
    asked = GenerateRequest(np.arange(20, 40, dtype=np.int32), Sampling(max_tokens=64, seed=1))
    gaps, seconds, memory = [], [], {}
    try:
        await engine.generate(asked)
        for version in range(1, ROUNDS + 1):
            memory["awake"] = used() - alone
            await engine.sleep()
            memory["asleep"] = used() - alone
            with torch.no_grad():  # an update: the output is another one
                for parameter in model.parameters():
                    parameter.mul_(1.0 + 0.05 * torch.randn_like(parameter))
            started = time.perf_counter()
            weights = {name: value.to("cpu", dtype) for name, value in model.state_dict().items()}
            await engine.load_weights(weights, version)
            seconds.append(time.perf_counter() - started)
            got = await engine.generate(asked)
            sample = sample_of(asked.prompt_ids, got)
            with torch.autocast(options.device.type, dtype=torch.bfloat16, enabled=not options.reduced):
                (found,) = score(model, [sample], 4096)
            gaps.append(float(np.abs(found[sample.mask] - got.logprobs).mean()))
            gc.collect()
    finally:
        await engine.close()
    figures = {f"{name}_gib": round(size / 2**30, 3) for name, size in memory.items()}
    figures |= {"seconds_new_weights": round(min(seconds), 3), "logprob_diff_mean": round(max(gaps), 5)}
    if max(gaps) > (1e-3 if options.reduced else 0.1):
        raise RuntimeError(f"vLLM does not sample from the new weights: {figures}")
    if not options.reduced and memory["awake"] - memory["asleep"] < cache:
        raise RuntimeError(f"vLLM frees less than its cache: {figures}")
    return figures


if __name__ == "__main__":
    main(run, __doc__)
