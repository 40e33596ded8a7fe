"""A doctor that can ask two questions before the diagnosis, written with the plain OpenAI SDK."""

from __future__ import annotations

import os
import re
from typing import Any

from clinic import QUESTIONS, SYSTEM, from_task
from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The diagnosis of the task's patient."""
    patient = from_task(task)
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": patient.opening},
    ]
    for asked in range(QUESTIONS + 1):
        completion = await client.chat.completions.create(model=MODEL, messages=messages)
        reply = completion.choices[0].message.content or ""
        diagnosis = re.fullmatch(r"You have (.+)\.", reply.strip())
        if diagnosis or asked == QUESTIONS:
            break
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": patient.answer(reply)},
        ]
    return diagnosis[1] if diagnosis else reply
