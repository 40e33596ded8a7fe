"""LangGraph: which node or agent calls, the explicit model, graphs as workflows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest

import ajet
import ajet_langgraph
from ajet import ConfigError, Task, Tuner
from ajet.cli import run_program
from ajet.interfaces.workflow import load_workflow
from ajet.plugins import load_plugins

from ..programs import (
    CLOSED,
    SYSTEM,
    agents_of,
    by_rules,
    calculator_for_langchain,
    calling,
    make_langgraph,
    require,
    script,
)

require("langgraph", "langchain_openai", "langchain.agents")

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import create_react_agent


def model(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="m", base_url=CLOSED, api_key="k", max_retries=0, **options)


def ask(text: str = "hi") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def two_nodes() -> Any:
    """A graph whose first node is asynchronous and whose second is not."""

    async def plan(state: MessagesState) -> Any:
        return {"messages": [await model().ainvoke(state["messages"])]}

    def write(state: MessagesState) -> Any:
        return {"messages": [model().invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "write")
    graph.add_edge("write", END)
    return graph


# ------------------------------------------------------------------ labels


def test_the_nodes_of_a_graph_are_agents(prepared: Callable[..., Any]) -> None:
    bench = prepared(by_rules(("hi", "yes")))
    with bench.session() as session:
        asyncio.run(two_nodes().compile().ainvoke(ask()))
    assert agents_of(session) == ["plan", "write"]


def test_an_unnamed_agent_is_its_model_node(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        create_agent(model()).invoke(ask())
    assert agents_of(session) == ["model"]


def test_an_agent_used_as_a_tool_has_a_name_of_its_own(prepared: Callable[..., Any]) -> None:
    expert = create_agent(model(), system_prompt="You are the expert.", name="expert")

    @tool
    async def consult(question: str) -> str:
        """Ask the expert."""
        return str((await expert.ainvoke(ask(question)))["messages"][-1].text)

    boss = create_agent(model(), [consult], system_prompt="You are the boss.", name="boss")
    bench = prepared(
        by_rules(
            ("You are the expert.", "42"),
            ("<tool_response>", "It is 42."),
            ("You are the boss.", calling("consult", question="What is it?")),
        )
    )
    with bench.session() as session:
        state = asyncio.run(boss.ainvoke(ask()))
    assert agents_of(session) == ["boss", "expert", "boss"]
    assert state["messages"][-1].text == "It is 42."


def test_agents_as_nodes_of_a_graph_keep_their_names(prepared: Callable[..., Any]) -> None:
    graph = StateGraph(MessagesState)
    for name in ("first", "second"):
        graph.add_node(f"node of {name}", create_agent(model(), name=name))
    graph.add_edge(START, "node of first")
    graph.add_edge("node of first", "node of second")
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(graph.compile().ainvoke(ask()))
    assert agents_of(session) == ["first", "second"]


def test_the_users_own_label_wins(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session, ajet.label(agent="mine"):
        create_agent(model(), name="solver").invoke(ask())
    assert agents_of(session) == ["mine"]


def test_a_model_outside_any_graph_has_no_name(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        model().invoke("hi")
    assert agents_of(session) == ["agent"]


def supervised() -> Any:
    """A supervisor that hands over to one of two experts, as langgraph-supervisor builds it."""
    graph = StateGraph(MessagesState)
    graph.add_node("supervisor", create_react_agent(model(), [], prompt="You supervise.", name="supervisor"))
    for name in ("math_expert", "research_expert"):
        graph.add_node(name, create_react_agent(model(), [], prompt=f"You are {name}.", name=name))
    graph.add_edge(START, "supervisor")
    graph.add_edge("supervisor", "math_expert")
    graph.add_edge("math_expert", "research_expert")
    return graph.compile()


@pytest.mark.parametrize("is_async", [False, True])
def test_prebuilt_agents_in_a_graph_have_their_own_names(
    is_async: bool, prepared: Callable[..., Any]
) -> None:
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(supervised().ainvoke(ask())) if is_async else supervised().invoke(ask())
    assert agents_of(session) == ["supervisor", "math_expert", "research_expert"]


@pytest.mark.whole
def test_a_subgraphs_agent_is_named_by_the_innermost_name_that_the_user_gave(
    prepared: Callable[..., Any],
) -> None:
    """Below the node `team`: a supervisor's graph, an unnamed agent, and a node with a name of its own."""
    inner = StateGraph(MessagesState)
    inner.add_node("team", supervised())
    inner.add_node("helper", create_agent(model()))
    inner.add_node("nested", two_nodes().compile())
    inner.add_edge(START, "team")
    inner.add_edge("team", "helper")
    inner.add_edge("helper", "nested")
    outer = StateGraph(MessagesState)
    outer.add_node("outer", inner.compile())
    outer.add_edge(START, "outer")
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(outer.compile().ainvoke(ask()))
    named = ["supervisor", "math_expert", "research_expert", "helper", "plan", "write"]
    assert agents_of(session) == named


def test_a_team_that_an_agent_calls_as_a_tool_keeps_its_names(prepared: Callable[..., Any]) -> None:
    team = supervised()

    @tool
    async def consult(question: str) -> str:
        """Ask the team."""
        return str((await team.ainvoke(ask(question)))["messages"][-1].text)

    boss = create_agent(model(), [consult], system_prompt="You are the boss.", name="boss")
    bench = prepared(
        by_rules(
            ("You supervise.", "42"),
            ("_expert.", "42"),
            ("<tool_response>", "It is 42."),
            ("You are the boss.", calling("consult", question="What is it?")),
        )
    )
    with bench.session() as session:
        asyncio.run(boss.ainvoke(ask()))
    assert agents_of(session) == ["boss", "supervisor", "math_expert", "research_expert", "boss"]


# ------------------------------------------------------------------ the explicit model


def test_the_explicit_model_carries_its_labels_to_the_episode(prepared: Callable[..., Any]) -> None:
    bench = prepared(by_rules(("hi", "yes")))
    with bench.session() as session:
        tuner = Tuner(CLOSED, session.key, load_plugins().handles)
        solver = tuner.as_langchain_model(agent="solver", max_tokens=100)
        assert isinstance(solver, ChatOpenAI)
        assert solver.invoke("hi").text == "yes"
    assert agents_of(session) == ["solver"]


# ------------------------------------------------------------------ graphs as workflows


def test_a_compiled_graph_is_a_workflow(prepared: Callable[..., Any]) -> None:
    workflow = ajet_langgraph.ajet_workflows(two_nodes().compile())
    assert workflow is not None

    async def run(task: Task) -> Any:
        return await workflow.fresh()(task, None)

    (episode,) = prepared(by_rules(("question 0", "yes"))).run(run)
    assert episode.output.response == "yes"
    assert [exchange.agent for exchange in episode.record.exchanges] == ["plan", "write"]


def test_the_job_file_names_the_graph(tmp_path: Any) -> None:
    (tmp_path / "agent.py").write_text(
        "from langgraph.graph import START, MessagesState, StateGraph\n"
        "builder = StateGraph(MessagesState)\n"
        "builder.add_node('node', lambda state: {'messages': [('ai', 'done')]})\n"
        "builder.add_edge(START, 'node')\n"
        "graph = builder.compile()\n"
    )
    workflow = load_workflow(f"{tmp_path}/agent.py:graph", load_plugins().manager.hook)
    assert asyncio.run(workflow.fresh()(Task("t", "hi"), None)) == "done"  # type: ignore[arg-type]


@pytest.mark.whole
def test_a_refused_call_of_a_prebuilt_graph_is_not_on_a_line_of_this_plugin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No line of the user's leads to it: the nodes are LangChain's, and the workflow is this plugin's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "agent.py").write_text(
        "from langchain.agents import create_agent\n"
        "from langchain_openai import ChatOpenAI\n"
        f"model = ChatOpenAI(model='m', base_url={CLOSED!r}, api_key='k', logit_bias={{'1': 1}})\n"
        "graph = create_agent(model)\n"
    )
    (tmp_path / "tasks.jsonl").write_text('{"query": "hi", "answer": "yes"}')
    (tmp_path / "answers.yaml").write_text("- {say: 'yes'}")
    flags = (
        "--workflow agent.py:graph --judge exact --tasks tasks.jsonl --answers answers.yaml --group-size 1"
    )
    run_program(["check", *flags.split(), "--set", "rollout.retries=0"])
    printed = capsys.readouterr()
    line = f"1 LLM call was refused: unsupported_parameter, {CLOSED}/chat/completions\n"
    assert line in printed.out, printed
    assert "ajet_langgraph" not in printed.out + printed.err


def test_attempts_do_not_share_a_checkpointers_thread(prepared: Callable[..., Any]) -> None:
    workflow = ajet_langgraph.ajet_workflows(two_nodes().compile(checkpointer=InMemorySaver()))
    assert workflow is not None

    async def run(task: Task) -> Any:
        return await workflow.fresh()(task, None)

    episodes = prepared(by_rules(("question", "yes"))).run(run, group_size=2)
    assert [len(e.record.exchanges[0].chat()) for e in episodes] == [2, 2]


def test_the_messages_of_a_task_stand_in_for_its_query(prepared: Callable[..., Any]) -> None:
    workflow = ajet_langgraph.ajet_workflows(create_agent(model()))
    task = Task("t", "hi", messages=({"role": "system", "content": "Be brief."}, *ask("ho")["messages"]))
    with prepared(by_rules(("Be brief.", "yes"))).session() as session:
        assert asyncio.run(workflow.fresh()(task, None)) == "yes"  # type: ignore[union-attr]
    (exchange,) = session.record.exchanges
    assert [m["content"] for m in exchange.chat()] == ["Be brief.", "ho", "yes"]


def test_the_state_may_be_a_typed_dict_of_typing(prepared: Callable[..., Any]) -> None:
    class State(TypedDict):
        messages: Annotated[list[Any], add_messages]

    graph = StateGraph(State)
    graph.add_node("node", lambda state: {"messages": [model().invoke(state["messages"])]})
    graph.add_edge(START, "node")
    workflow = ajet_langgraph.ajet_workflows(graph.compile())
    assert workflow is not None
    with prepared(by_rules(("hi", "yes"))).session() as session:
        assert asyncio.run(workflow.fresh()(Task("t", "hi"), None)) == "yes"  # type: ignore[arg-type]
    assert agents_of(session) == ["node"]


def test_a_typed_dict_without_messages_is_refused_with_the_remedy() -> None:
    class State(TypedDict):
        question: str

    graph = StateGraph(State)
    graph.add_node("node", lambda state: {})
    graph.add_edge(START, "node")
    with pytest.raises(ConfigError, match=r"takes question, but no `messages`; name a function"):
        ajet_langgraph.ajet_workflows(graph.compile())


def test_a_graph_without_messages_is_refused_with_the_remedy() -> None:
    from typing_extensions import TypedDict

    class State(TypedDict):
        question: str

    graph = StateGraph(State)
    graph.add_node("node", lambda state: {})
    graph.add_edge(START, "node")
    with pytest.raises(ConfigError, match=r"takes question, but no `messages`; name a function"):
        ajet_langgraph.ajet_workflows(graph.compile())


def test_other_objects_are_no_graphs() -> None:
    assert ajet_langgraph.ajet_workflows("pkg:run") is None
    assert ajet_langgraph.ajet_workflows(test_other_objects_are_no_graphs) is None


# ------------------------------------------------------------------ streaming


@pytest.mark.parametrize("mode", ["values", "updates", "messages"])
def test_every_streaming_mode_is_the_same_episode(mode: str, prepared: Callable[..., Any]) -> None:
    bench = prepared(script)
    with bench.session("a") as plain:
        asyncio.run(make_langgraph()("12 + 30"))

    async def consume() -> None:
        agent = create_agent(model(), [calculator_for_langchain()], system_prompt=SYSTEM, name="solver")
        async for _ in agent.astream(ask("12 + 30"), stream_mode=mode):
            pass

    with bench.session("b") as streamed:
        asyncio.run(consume())
    assert [c.end.ids().tolist() for c in streamed.record.calls] == [
        c.end.ids().tolist() for c in plain.record.calls
    ]
    assert agents_of(streamed) == ["solver", "solver"]
