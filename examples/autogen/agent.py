"""An agent that does sums with a calculator, written with AutoGen AgentChat.

Like any such program, it uses the endpoint in OPENAI_BASE_URL and the key in OPENAI_API_KEY:

    python agent.py "What is 12 + 30 - 7?"
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from types import SimpleNamespace
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = "Solve the problem with the calculator."

model = OpenAIChatCompletionClient(model=MODEL)


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if not re.fullmatch(r" *[+-]?\d+( *[+-] *\d+)* *", expression):
        return f"error: cannot read {expression!r}: only whole numbers, + and -"
    return str(sum(int(number) for number in re.findall(r"[+-]?\d+", expression.replace(" ", ""))))


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    # An agent keeps its conversation, so each question needs a new agent.
    solver = AssistantAgent("solver", model, tools=[calculator], system_message=SYSTEM, max_tool_iterations=4)
    result = await solver.run(task=task.query)
    return str(result.messages[-1].content)  # type: ignore[union-attr]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "What is 12 + 30 - 7?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
