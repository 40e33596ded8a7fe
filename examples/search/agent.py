"""A lead that answers questions with the help of a researcher: two LangChain agents, each with its own context."""

from __future__ import annotations

import os
from typing import Any

import bm25s
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from world import make_world

MODEL = os.environ.get("OPENAI_MODEL", "gpt-5-mini")
LEAD = "Answer the question. Ask the researcher for one fact at a time."
RESEARCHER = "Search the encyclopedia, then report the fact."

model = ChatOpenAI(model=MODEL, api_key=os.environ.get("OPENAI_API_KEY") or "unset")


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


@tool
def search(query: str) -> str:
    """Find an article."""
    return best(encyclopedia, query)


researcher = create_agent(model, [search], system_prompt=RESEARCHER, name="researcher")


@tool
async def research(fact: str) -> str:
    """Ask the researcher."""
    end = await researcher.ainvoke({"messages": [("user", fact)]})
    return str(end["messages"][-1].text)


lead = create_agent(model, [research], system_prompt=LEAD, name="lead")


async def run(task: Any) -> str:
    """The answer to the task's question."""
    end = await lead.ainvoke({"messages": [("user", task.query)]})
    return str(end["messages"][-1].text)
