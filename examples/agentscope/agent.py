"""An agent that does sums with a calculator, written with AgentScope 2.

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

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = "Solve the problem with the calculator."
ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="It only adds.")

credential = OpenAICredential(
    api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ.get("OPENAI_BASE_URL")
)
model = OpenAIChatModel(credential=credential, model=MODEL)


def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if not re.fullmatch(r" *[+-]?\d+( *[+-] *\d+)* *", expression):
        return f"error: cannot read {expression!r}: only whole numbers, + and -"
    return str(sum(int(number) for number in re.findall(r"[+-]?\d+", expression.replace(" ", ""))))


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    # An agent keeps its conversation, so each question needs a new agent.
    solver = Agent("solver", SYSTEM, model, Toolkit(tools=[FunctionTool(calculator, permission=ALLOWED)]))
    message = await solver.reply(UserMsg("user", task.query))
    return message.get_text_content() or ""


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "What is 12 + 30 - 7?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1]))))
