"""An agent that tests share."""

from __future__ import annotations

import httpx2

from ajet.types import Task


async def ask(task: Task) -> str:
    """An agent of one call."""
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}], "max_tokens": 7}
        answer = (await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)).json()
    return str(answer["choices"][0]["message"]["content"])
