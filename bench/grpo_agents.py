"""The agents of `bench/local.py`: one call per episode, as raw HTTP or through the OpenAI SDK."""

from __future__ import annotations

from typing import Any

import httpx
from grpo_work import reward
from openai import AsyncOpenAI

from ajet import Task, WorkflowOutput

BASE_URL = "http://127.0.0.1:9/v1"
"""No server listens on this port: capture answers."""
HTTP = httpx.AsyncClient()
SDK = AsyncOpenAI(base_url=BASE_URL, api_key="none")


async def raw(task: Task) -> WorkflowOutput:
    """A call through httpx."""
    body = {"model": "m", "messages": messages(task)}
    answer = (await HTTP.post(f"{BASE_URL}/chat/completions", json=body)).json()
    return judged(task, answer["choices"][0]["message"]["content"] or "")


async def sdk(task: Task) -> WorkflowOutput:
    """A call through the OpenAI SDK."""
    answer = await SDK.chat.completions.create(model="m", messages=messages(task))
    return judged(task, answer.choices[0].message.content or "")


def messages(task: Task) -> list[Any]:
    """The chat that the model answers."""
    return [*task.metadata.get("shown", ()), {"role": "user", "content": task.query}]


def judged(task: Task, answer: str) -> WorkflowOutput:
    """The output of an episode with this answer."""
    return WorkflowOutput(reward=reward(task.metadata["answer"], answer), response=answer)
