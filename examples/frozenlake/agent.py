"""An agent that crosses a frozen lake step by step, over plain HTTP: no framework, no SDK."""

from __future__ import annotations

import os
from typing import Any

import httpx
from lake import MAX_STEPS, MOVES, SYSTEM, Lake

from ajet import WorkflowOutput

URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
KEY = os.environ.get("OPENAI_API_KEY") or "unset"
MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

http = httpx.AsyncClient(base_url=URL, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)


async def run(task: Any) -> WorkflowOutput:
    """Cross the lake of the task; the reward is Gymnasium's."""
    lake = Lake(task.metadata["map"])
    seen, total, over = lake.reset(seed=0), 0.0, False
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    for _ in range(MAX_STEPS):
        messages.append({"role": "user", "content": seen})
        answer = await http.post("/chat/completions", json={"model": MODEL, "messages": messages})
        answer.raise_for_status()
        message = answer.json()["choices"][0]["message"]
        messages.append({"role": "assistant", "content": message["content"]})
        move = (message["content"] or "").strip()
        if move not in MOVES:
            break
        seen, reward, over = lake.step(move)
        total += reward
        if over:
            break
    return WorkflowOutput(reward=total, is_success=total > 0)
