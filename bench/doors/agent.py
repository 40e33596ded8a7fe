"""An agent that chooses a door and walks through rooms, over plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
from house import SYSTEM, best, questions

from ajet import Task, WorkflowOutput

CLIENT = httpx2.AsyncClient()
URL = "http://127.0.0.1:9/v1/chat/completions"
"""No server listens on this port: capture answers."""


async def run(task: Task) -> WorkflowOutput:
    """The reward is the sum over all answers."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    total = 0.0
    for question in questions(**task.metadata):
        messages.append({"role": "user", "content": question})
        answer = await CLIENT.post(URL, json={"model": "m", "messages": messages})
        said = answer.json()["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": said})
        wanted, reward = best(question)
        share = 1 / task.metadata["rooms"] if question.startswith("Room") else 1.0
        total += reward * share * (said.strip() == wanted)
    return WorkflowOutput(reward=total, is_success=total > 0.5)
