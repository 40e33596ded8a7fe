"""An agent that answers a customer's letter, as a plain function of the OpenAI SDK."""

from __future__ import annotations

import os
from typing import Any

from openai import OpenAI
from shop import SYSTEM

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

client = OpenAI(api_key=os.environ.get("OPENAI_API_KEY") or "unset")


def run(task: Any) -> str:
    """The reply to the task's letter."""
    messages: Any = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.query}]
    return client.chat.completions.create(model=MODEL, messages=messages).choices[0].message.content or ""
