"""An agent that answers puzzles in one call, written with the plain OpenAI SDK, after two that it shows solved.

OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py "State the final answer to the following arithmetic problem: 31 + 7 ="
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

from openai import AsyncOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
LONGEST = 12
"""Tokens of an answer."""
SHOWN: list[Any] = [
    {"role": "user", "content": "State the final answer to the following arithmetic problem: 31 + 7 ="},
    {"role": "assistant", "content": "38"},
    {"role": "user", "content": "State the final answer to the following arithmetic problem: 4 - 16 ="},
    {"role": "assistant", "content": "-12"},
]

# One client for all puzzles, so connections are reused. The SDK requires a key even if the endpoint does not.
client = AsyncOpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


async def run(task: Any) -> str:
    """The model's answer to ``task.query``."""
    messages = [*SHOWN, {"role": "user", "content": task.query}]
    completion = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=LONGEST)
    return (completion.choices[0].message.content or "").strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(
            f'usage: python {sys.argv[0]} "State the final answer to the following arithmetic problem: 31 + 7 ="'
        )
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
