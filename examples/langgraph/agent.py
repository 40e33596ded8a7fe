"""An agent that does sums with a calculator, written with LangChain's `create_agent` on LangGraph.

Like any such program, it uses the endpoint in OPENAI_BASE_URL and the key in OPENAI_API_KEY:

    python agent.py "What is 12 + 30 - 7?"
"""

from __future__ import annotations

import os
import re
import sys

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
SYSTEM = "Solve the problem with the calculator."


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    if not re.fullmatch(r" *[+-]?\d+( *[+-] *\d+)* *", expression):
        return f"error: cannot read {expression!r}: only whole numbers, + and -"
    return str(sum(int(number) for number in re.findall(r"[+-]?\d+", expression.replace(" ", ""))))


graph = create_agent(ChatOpenAI(model=MODEL), [calculator], system_prompt=SYSTEM, name="solver")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "What is 12 + 30 - 7?"')
    print(graph.invoke({"messages": [("user", sys.argv[1])]})["messages"][-1].text)
