"""An agent that does sums with a calculator, written with the OpenAI Agents SDK.

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

from agents import Agent, Runner, function_tool

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = "Solve the problem with the calculator."


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if not re.fullmatch(r" *[+-]?\d+( *[+-] *\d+)* *", expression):
        return f"error: cannot read {expression!r}: only whole numbers, + and -"
    return str(sum(int(number) for number in re.findall(r"[+-]?\d+", expression.replace(" ", ""))))


solver = Agent("solver", instructions=SYSTEM, tools=[calculator], model=MODEL)


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    result = await Runner.run(solver, task.query, max_turns=4)
    return str(result.final_output)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "What is 12 + 30 - 7?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
