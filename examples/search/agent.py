"""A lead and a researcher as LangGraph graphs. The researcher is a sub-graph with its own context: it sees one request, and
the lead sees only its report."""

from __future__ import annotations

import operator
import os
from typing import Annotated, Any, TypedDict

import bm25s
from langchain_core.messages import AnyMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from world import make_world

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
LEAD = "To learn a fact, say: Find the ... of ... Then answer: It is ... Source: ..."
RESEARCHER = "First say: Search ... Then report: It has the ... Source: ..."
REQUESTS = 3
"""How often the lead may ask the researcher."""

model = ChatOpenAI(model=MODEL, api_key=os.environ.get("OPENAI_API_KEY") or "unset")


class State(TypedDict):
    messages: Annotated[list[AnyMessage], operator.add]


def make_index(articles: dict[str, str]) -> bm25s.BM25:
    """A BM25 index of articles, in which a title counts three times."""
    index = bm25s.BM25(corpus=[f"Title: {title}. {text}" for title, text in articles.items()])
    texts = [f"{title} {title} {title} {text}" for title, text in articles.items()]
    index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    return index


def best(index: bm25s.BM25, query: str) -> str:
    """The article that fits a query best."""
    found, _ = index.retrieve(bm25s.tokenize(query, show_progress=False), k=1, show_progress=False)
    return str(found[0, 0])


encyclopedia = make_index(make_world().articles)


async def query(state: State) -> State:
    """The researcher writes a query."""
    return {"messages": [await model.ainvoke(state["messages"])]}


def search(state: State) -> State:
    """The article that fits the query best."""
    return {"messages": [HumanMessage(best(encyclopedia, state["messages"][-1].text))]}


async def report(state: State) -> State:
    """The researcher reports what the article says."""
    return {"messages": [await model.ainvoke(state["messages"])]}


builder = StateGraph(State)
builder.add_sequence([query, search, report])
builder.add_edge(START, "query")
researcher = builder.compile()


async def lead(state: State) -> State:
    """The lead asks for a fact, or answers."""
    return {"messages": [await model.ainvoke(state["messages"])]}


async def research(state: State) -> State:
    """The researcher's report on the lead's request."""
    request = HumanMessage(state["messages"][-1].text)
    end = await researcher.ainvoke({"messages": [SystemMessage(RESEARCHER), request]})
    return {"messages": [HumanMessage(end["messages"][-1].text)]}


def next_node(state: State) -> str:
    """`research` if the lead has asked for a fact and may ask again, else the end."""
    asks = state["messages"][-1].text.startswith("Find ")
    return "research" if asks and len(state["messages"]) <= 2 * REQUESTS + 1 else END


builder = StateGraph(State)
builder.add_node("lead", lead)
builder.add_node("research", research)
builder.add_edge(START, "lead")
builder.add_conditional_edges("lead", next_node)
builder.add_edge("research", "lead")
team = builder.compile()


async def run(task: Any) -> str:
    """The answer to the task's question."""
    end = await team.ainvoke({"messages": [SystemMessage(LEAD), HumanMessage(task.query)]})
    return str(end["messages"][-1].text)
