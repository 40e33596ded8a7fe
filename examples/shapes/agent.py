"""An agent that looks at pictures, written with the plain OpenAI SDK: an image in the prompt, and a tool that returns one."""

from __future__ import annotations

import json
import os
from typing import Any

from openai import AsyncOpenAI

from ajet_local.starter.shapes import ZOOM, Shape, image_part, question, zoomed

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
MAX_TURNS = 6

client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """Name the colour of the mark in the task's picture."""
    picture = Shape(**task.metadata["shape"]).picture()
    messages: list[Any] = question(picture)
    for _ in range(MAX_TURNS):
        answer = await client.chat.completions.create(model=MODEL, messages=messages, tools=[ZOOM])
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return (message.content or "").strip()
        for call in message.tool_calls:
            messages.append(
                {"role": "tool", "tool_call_id": call.id, "content": result(picture, call.function.arguments)}
            )
    return ""


def result(picture: Any, arguments: str) -> Any:
    """What the tool returns: the quarter of the picture, or what is wrong with the call."""
    try:
        return [image_part(zoomed(picture, json.loads(arguments)["quarter"]))]
    except (ValueError, KeyError, TypeError):
        return "There is no such quarter."
