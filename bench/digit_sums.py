"""The agent of `bench/algorithms.py`: one raw HTTP call that asks for the sum of two digits."""

from __future__ import annotations

from typing import Any

import httpx2

from ajet import Task, WorkflowOutput

CLIENT = httpx2.AsyncClient()
URL = "http://127.0.0.1:9/v1/chat/completions"
"""No server listens on this port: capture answers."""


async def run(task: Task) -> WorkflowOutput:
    """Reward 1 for the right sum, else 0."""
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    answer = (await CLIENT.post(URL, json=body)).json()["choices"][0]["message"]["content"] or ""
    right = answer.strip() == str(task.metadata["answer"])
    return WorkflowOutput(reward=float(right), response=answer, is_success=right)
