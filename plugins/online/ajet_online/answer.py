"""The workflow of jobs that name none: a single call answers a task's chat, as the explorer does."""

from __future__ import annotations

from typing import Any

import httpx2

from ajet import Task, Tuner, WorkflowOutput


async def answer(task: Task, tuner: Tuner) -> WorkflowOutput:
    """Send the task's messages, or its query as a user's message, to the model; the response is the text of its answer."""
    messages: list[Any] = list(task.messages) or [{"role": "user", "content": task.query}]
    headers = {"authorization": f"Bearer {tuner.api_key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=None) as client:
        body = {"model": "policy", "messages": messages}
        reply = await client.post(f"{tuner.base_url}/chat/completions", json=body)
        reply.raise_for_status()
    return WorkflowOutput(response=reply.json()["choices"][0]["message"]["content"])
