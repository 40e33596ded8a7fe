"""A LangGraph agent that guesses an expression, is told by how much it is off, and guesses again: three tries."""

from __future__ import annotations

import operator
import os
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from puzzle import SYSTEM, TRIES, told

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
    """What the expression is worth, and by how much it misses the target."""
    reply = told(str(state["messages"][-1].content).strip(), state["numbers"], state["target"])
    return {"messages": [HumanMessage(reply)]} if reply else {"solved": True}


def goes_on(state: State) -> str:
    """Whether there is another try."""
    return END if state["solved"] or state["tries"] == TRIES else "propose"


builder = StateGraph(State)
builder.add_node("propose", propose)
builder.add_node("check", check)
builder.add_edge(START, "propose")
builder.add_edge("propose", "check")
builder.add_conditional_edges("check", goes_on)
graph = builder.compile()


async def run(task: Any) -> str:
    """The last expression for the puzzle of the task."""
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
