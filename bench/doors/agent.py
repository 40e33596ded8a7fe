"""An agent that chooses a door and walks through seven rooms, over plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
from house import ROOMS, SYSTEM, question, worth

from ajet import Task, WorkflowOutput

CLIENT = httpx2.AsyncClient()
URL = "http://127.0.0.1:9/v1/chat/completions"
"""No server listens on this port: capture answers."""


async def run(task: Task) -> WorkflowOutput:
    """The reward is what all answers are worth."""
    sign, house = task.metadata["sign"], task.metadata["house"]
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    total = 0.0
    for number in range(ROOMS + 1):
        messages.append({"role": "user", "content": question(sign, house, number)})
        answer = await CLIENT.post(URL, json={"model": "m", "messages": messages})
        said = answer.json()["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": said})
        total += worth(sign, number, said.strip())
    return WorkflowOutput(reward=total, is_success=total > 0.5)
