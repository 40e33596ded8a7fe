"""An agent that chooses a door and draws a card, over plain HTTP."""

from __future__ import annotations

from typing import Any

import httpx2
from house import SYSTEM, questions, wanted

from ajet import Task, WorkflowOutput

CLIENT = httpx2.AsyncClient()
URL = "http://127.0.0.1:9/v1/chat/completions"
"""No server listens on this port: capture answers."""


async def run(task: Task) -> WorkflowOutput:
    """The reward is the sum over both answers; success is the right door."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}]
    rewards = []
    for question, (word, reward) in zip(
        questions(task.metadata["house"]), wanted(task.metadata["lucky"]), strict=True
    ):
        messages.append({"role": "user", "content": question})
        answer = await CLIENT.post(URL, json={"model": "m", "messages": messages})
        said = answer.json()["choices"][0]["message"]["content"] or ""
        messages.append({"role": "assistant", "content": said})
        rewards.append(reward * (said.split()[:1] == [word]))
    return WorkflowOutput(reward=sum(rewards), is_success=rewards[0] > 0)
