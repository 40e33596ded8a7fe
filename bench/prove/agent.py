"""The agent of `prove.training`: one call. Its reward is random, as the model knows nothing."""

from __future__ import annotations

import random

from openai import AsyncOpenAI

import ajet

client = AsyncOpenAI(api_key="unset")


async def ask(task: ajet.Task) -> str:
    """Ask the model; returns what it says."""
    answer = await client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": task.query}]
    )
    return answer.choices[0].message.content or ""


def judge(task: ajet.Task, output: ajet.WorkflowOutput) -> float:
    """A random reward."""
    return random.random()
