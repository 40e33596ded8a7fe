"""An agent that solves math problems with Python programs, written with the OpenAI Agents SDK.

Like any such program, it uses the endpoint in OPENAI_BASE_URL and the key in OPENAI_API_KEY:

    python agent.py "How many 1 bits are there in the binary representation of the number 12345?"
"""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace
from typing import Any

from agents import Agent, MaxTurnsExceeded, ModelBehaviorError, Runner, function_tool

from ajet_judges import Limits, run_python

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = "Solve the problem with Python. Answer with the number only."
TRIES = 3
LIMITS = Limits(seconds=30, cpu_seconds=2, memory=64, output=4)

os.environ.setdefault("OPENAI_API_KEY", "unset")  # the SDK requires a key even if the endpoint does not


@function_tool(failure_error_function=None)  # a machine without a sandbox is no error of the model
async def python(code: str) -> str:
    """Run a Python program. Returns what it prints, or its error."""
    ran = await run_python(code, limits=LIMITS)
    return ran.stdout.strip() if ran.ok else ran.describe()


solver = Agent("solver", instructions=SYSTEM, tools=[python], model=MODEL)


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``; empty if it still runs programs after `TRIES` of them, or if
    an answer is cut off or its tool call is invalid."""
    try:
        result = await Runner.run(solver, task.query, max_turns=TRIES + 1)
    except (MaxTurnsExceeded, ModelBehaviorError):
        return ""
    return str(result.final_output).strip()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "How many 1 bits are in the number 12345?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
