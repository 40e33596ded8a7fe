"""Requests over verl's client and load balancer to a server that says what it is told; run by test_engine.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import ray
from omegaconf import OmegaConf
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import TokenOutput
from verl.workers.rollout.router import GlobalRequestLoadBalancer

from ajet.types import GenerateRequest, Sampling
from ajet_local.starter.calculator import Calculator
from ajet_verl.engine import VerlEngine

STOP = 3


class Server:
    """Breaks the first request off after three tokens, and goes on under new weights."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        """The next answer."""
        self.asked.append({"prompt": prompt_ids, **sampling_params})
        if len(self.asked) == 1:
            return TokenOutput(
                token_ids=[11, 12, 13],
                log_probs=[-1, -2, -3],
                stop_reason="aborted",
                extra_fields={"global_steps": 4},
            )
        if len(self.asked) == 2:
            return TokenOutput(
                token_ids=[14, STOP],
                log_probs=[-4, -5],
                stop_reason="completed",
                extra_fields={"global_steps": 5},
            )
        ids = [20] * sampling_params["max_tokens"]
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields={"global_steps": 5})

    def seen(self) -> list[dict[str, Any]]:
        """The requests."""
        return self.asked


async def main() -> None:
    """Two requests; prints what came of them, and what the server saw."""
    server = ray.remote(Server).remote()
    balancer = ray.remote(GlobalRequestLoadBalancer).remote(servers={"one": server})
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "vllm"}}})
    client = FullyAsyncLLMServerClient(config, balancer)
    tokenizer = Calculator().tokenizer(0)[0]
    engine = VerlEngine(client, tokenizer, "qwen3", 64, seeded=False)
    prompt = np.array([1, 2], np.int32)
    sampling = Sampling(max_tokens=9, stop_token_ids=(STOP,), seed=7)
    answers = [await engine.generate(GenerateRequest(prompt, sampling, ("e", n))) for n in range(2)]
    found = [
        {
            "tokens": a.token_ids.tolist(),
            "logprobs": a.logprobs.tolist(),
            "versions": a.weight_versions.tolist(),
            "finish": a.finish_reason,
        }
        for a in answers
    ]
    print(json.dumps({"answers": found, "seen": await server.seen.remote()}))


if __name__ == "__main__":
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100_000_000, log_to_driver=False)
    asyncio.run(main())
    ray.shutdown()
