"""Measures what one Python thread costs an engine whose agents run in it.

    python bench/agents.py   # where vLLM is installed, its client too

`AGENTS` agents at once make calls of growing prompts through the openai SDK: with `sdk_ms` of CPU a call over a transport that
answers immediately, `thread_ms` in recorded episodes with their journal. Computed from this: the share of an engine's speed that is
`lost` when they all begin together and one thread does their work in turn, and `lost_with_vllm` if it also does that of vLLM's
client, `vllm_client_us_per_token`. An engine's pass takes a constant and a part for each request (`PASSES`). Last line: one JSON
object.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gateway import TEXT, AtOnce, direct_sdk

from ajet.capture.context import passthrough
from ajet.capture.process.garbage import rare_full_collections
from ajet.chat.renderer import Chat
from ajet.rollout.episode import EpisodeRunner, Plan
from ajet.rollout.recorder import RunRecorder
from ajet.types import GenerateRequest, Task
from ajet_local.starter.calculator import Calculator
from capture import MESSAGES, Hooked, running

AGENTS, WAVES = 128, 3
TURNS, ANSWERS = (1, 8), (64, 256)
"""Calls of an agent, tokens of an answer."""
PASSES = {"11700 tokens/s": (128 / 11_700, 0.0), "36000 tokens/s": (0.4e-3, (128 / 36_000 - 0.4e-3) / 128)}
"""Seconds of a pass, and of each request in it: vLLM with Qwen3-0.6B on an H100 as recorded, and what the card's bandwidth allows."""
BETWEEN = "The result of it is 7 or so, and the next one follows. " * 4


def main() -> None:
    client = vllm_client() if importlib.util.find_spec("vllm") else None
    found: dict[str, Any] = {}
    for turns in TURNS:
        sdk = agents_cpu(turns, ANSWERS[-1], recorded=False)
        for tokens in ANSWERS:
            thread = agents_cpu(turns, tokens)
            figures: dict[str, Any] = {"sdk_ms": round(1e3 * sdk, 2), "thread_ms": round(1e3 * thread, 2)}
            for key, each in (("lost", 0.0), *((("lost_with_vllm", client),) if client else ())):
                figures[key] = {name: lost(turns, tokens, thread, each, *p) for name, p in PASSES.items()}
            found[f"{turns} × {tokens}"] = figures
            print(f"{turns} calls of {tokens} tokens: {figures}", flush=True)
    by_token = {"vllm_client_us_per_token": round(1e6 * client, 1)} if client else {}
    print(json.dumps({"agents": found} | by_token))


def agents_cpu(turns: int, answer: int, *, recorded: bool = True) -> float:
    """CPU seconds of a call, of all that its agent, capture and journal do; not ``recorded``, over the immediate transport."""
    chat = Chat(Calculator().tokenizer(0)[0], "qwen3")
    direct = direct_sdk()[1]

    async def agent(task: Task, tuner: Any) -> str:
        client = tuner.as_openai_client() if tuner else direct
        messages: Any = [MESSAGES[0], {"role": "user", "content": f"{task.id} {TEXT[:600]}"}]
        for turn in range(turns):
            reply = await client.chat.completions.create(model="m", messages=messages)
            messages += [reply.choices[0].message, {"role": "user", "content": f"{turn} {BETWEEN}"}]
        return str(reply.choices[0].message.content)

    async def waves(runner: EpisodeRunner, recorder: RunRecorder) -> float:
        async def episode(wave: int, number: int) -> None:
            task = Task(f"t{number // 8}")
            if recorded:
                plan = Plan(f"e{wave}-{number}", f"{wave}-{number}", task, number % 8, number // 8)
                recorder.episode(await runner.run(plan, 0), phase="train", step=1)
            else:
                with passthrough():
                    await agent(task, None)

        each = []
        for wave in range(WAVES + 1):  # the first one fills caches
            start = time.process_time()
            await asyncio.gather(*(episode(wave, number) for number in range(AGENTS)))
            each.append((time.process_time() - start) / AGENTS / turns)
        return min(each[1:])  # other programs only add

    with (
        tempfile.TemporaryDirectory() as folder,
        Hooked(AtOnce(chat.tokenizer, answer), chat) as hooked,
        running(hooked, agent) as runner,
        rare_full_collections(),
    ):
        return asyncio.run(waves(runner, RunRecorder(Path(folder))))


def lost(calls: int, tokens: int, thread: float, client: float, base: float, each: float) -> float:
    """The share of an engine's speed that is lost to one thread, which takes ``thread`` seconds for a call, before it is sent, and
    ``client`` for a token."""
    free = 0.0
    coming: deque[tuple[float, int]] = deque()
    """When a call reaches the engine, and which of its agent it is; ascending."""

    def send(now: float, call: int) -> None:
        nonlocal free
        free = max(free, now) + thread
        coming.append((free, call))

    for _ in range(AGENTS):
        send(0.0, 0)
    active: list[tuple[int, int]] = []
    """Tokens that a call still has to sample, and which of its agent it is."""
    now = 0.0
    while coming or active:
        now = now if active else max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            active.append((tokens, coming.popleft()[1]))
        now += base + each * len(active)
        if client:
            free = max(free, now) + client * len(active)
        ended = [call for left, call in active if left == 1]
        active = [(left - 1, call) for left, call in active if left > 1]
        for call in ended:
            if call + 1 < calls:
                send(now, call + 1)
    return round(1 - calls * tokens * (base + each * AGENTS) / max(now, free), 2)


def vllm_client() -> float:
    """CPU seconds of a token that vLLM's client takes in this process, with a tiny model."""
    import torch
    from transformers import AutoModelForCausalLM

    from ajet.interfaces.progress import Silent
    from ajet.types import Sampling
    from ajet_vllm.plugin import VLLMEnginePlugin

    tokenizer = Calculator().tokenizer(0)[0]
    config = Calculator().architecture(tokenizer)
    prompt = np.arange(5, 105, dtype=np.int32) % 30

    async def whole(engine: Any) -> float:
        await engine.start()
        try:
            each = []
            for wave in range(WAVES + 1):  # the first one fills caches
                wanted = [
                    GenerateRequest(prompt, Sampling(max_tokens=ANSWERS[-1]), (f"{wave}-{n}", 0))
                    for n in range(AGENTS)
                ]
                start = time.process_time()
                given = await asyncio.gather(*map(engine.generate, wanted))
                seconds = time.process_time() - start
                each.append(seconds / sum(len(one.token_ids) for one in given))
            return min(each[1:])
        finally:
            await engine.close()

    with tempfile.TemporaryDirectory() as folder:
        AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        plugin = VLLMEnginePlugin(dtype="float32", kv_cache_gib=0.5, options={"enforce_eager": True})
        return asyncio.run(whole(plugin.build(folder, 0, Silent())))


if __name__ == "__main__":
    main()
