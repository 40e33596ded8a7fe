"""An agent that answers questions about a database, written with LangChain's `create_agent` on LangGraph.

It shows the model some calls for questions: a small model follows what it is shown, not what is described to it.

    OPENAI_BASE_URL=… OPENAI_API_KEY=… python agent.py "How many people are on floor 4?"
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain.tools import ToolRuntime
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from office import COLUMNS, ask

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
CALLS = 3
"""Calls of the model for one question: a query, perhaps a better one after an error, and the answer."""
SHOWN = {
    "How many people are on floor 3?": "SELECT COUNT(*) FROM staff WHERE floor = 3",
    "What is the pay of person 21?": "SELECT pay FROM staff WHERE id = 21",
    "What is the highest pay in team 5?": "SELECT MAX(pay) FROM staff WHERE team = 5",
    "How many people are older than 58?": "SELECT COUNT(*) FROM staff WHERE age > 58",
    "What is the total pay on floor 2?": "SELECT SUM(pay) FROM staff WHERE floor = 2",
    "Who has the lowest pay in team 4?": "SELECT name FROM staff WHERE team = 4 ORDER BY pay LIMIT 1",
}
"""Questions and their statements."""
SYSTEM = "\n".join(
    [
        f"Answer with the SQLite table staff({COLUMNS}).",
        *(f"{q}\n{json.dumps({'name': 'query', 'arguments': {'sql': sql}})}" for q, sql in SHOWN.items()),
    ]
)


@dataclass
class Office:
    """Which database a question is about."""

    database: int


@tool
def query(sql: str, runtime: ToolRuntime[Office]) -> str:
    """Run a SELECT statement."""
    return ask(runtime.context.database, sql)


graph = create_agent(
    ChatOpenAI(model=MODEL, api_key=os.environ.get("OPENAI_API_KEY") or "unset"),
    [query],
    system_prompt=SYSTEM,
    middleware=[ModelCallLimitMiddleware(run_limit=CALLS)],
    context_schema=Office,
    name="clerk",
)


async def run(task: Any) -> str:
    """The agent's answer to ``task.query``."""
    end = await graph.ainvoke({"messages": [("user", task.query)]}, context=Office(task.metadata["database"]))
    return str(end["messages"][-1].text)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f'usage: python {sys.argv[0]} "How many people are on floor 4?"')
    print(asyncio.run(run(SimpleNamespace(query=sys.argv[1], metadata={"database": 0}))))
