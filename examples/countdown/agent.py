"""A LangGraph agent with three tries to guess an expression; after each, it learns by how much it is off."""

from __future__ import annotations

import operator
import os
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from puzzle import SYSTEM, TRIES, hint

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")

model = ChatOpenAI(model=MODEL, api_key=os.environ.get("OPENAI_API_KEY") or "unset")


class State(TypedDict):
    numbers: list[int]
    target: int
    messages: Annotated[list[AnyMessage], operator.add]
    tries: int
    solved: bool


async def propose(state: State) -> dict[str, Any]:
    """The model's next expression."""
    return {"messages": [await model.ainvoke(state["messages"])], "tries": state["tries"] + 1}


def check(state: State) -> dict[str, Any]:
    """Check the model's expression; if it is wrong, add a hint."""
    reply = hint(str(state["messages"][-1].content).strip(), state["numbers"], state["target"])
    return {"messages": [HumanMessage(reply)]} if reply else {"solved": True}


def next_node(state: State) -> str:
    """`propose` if another try is left, else the end."""
    return END if state["solved"] or state["tries"] == TRIES else "propose"


builder = StateGraph(State)
builder.add_node("propose", propose)
builder.add_node("check", check)
builder.add_edge(START, "propose")
builder.add_edge("propose", "check")
builder.add_conditional_edges("check", next_node)
graph = builder.compile()


async def run(task: Any) -> str:
    """The model's last expression for the task's puzzle."""
    puzzle = task.metadata["entry"]["metadata"]
    begin = {
        "numbers": puzzle["numbers"],
        "target": puzzle["target"],
        "messages": [SystemMessage(SYSTEM), HumanMessage(task.query)],
        "tries": 0,
        "solved": False,
    }
    end = await graph.ainvoke(begin)
    return str([m for m in end["messages"] if m.type == "ai"][-1].content).strip()
