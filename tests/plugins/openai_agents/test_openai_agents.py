"""The OpenAI Agents SDK: whose turn it is, traces that stay here, no websockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import ajet

from ..programs import CLOSED, agents_of, by_rules, calling, require

require("agents")

import agents
import openai
from agents import Agent, AgentHooks, OpenAIChatCompletionsModel, RunConfig, RunHooks, Runner, function_tool
from agents.tracing import TracingProcessor, get_trace_provider
from agents.tracing.processors import default_processor


def agent(name: str, **options: Any) -> Agent[Any]:
    client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k", max_retries=0)
    model = OpenAIChatCompletionsModel("m", client)
    return Agent(name, instructions=f"You are {name}.", model=model, **options)


def processors() -> tuple[Any, ...]:
    return tuple(get_trace_provider()._multi_processor._processors)  # type: ignore[attr-defined]


# ------------------------------------------------------------------ labels


def test_a_handoff_changes_the_name(prepared: Callable[..., Any]) -> None:
    solver = agent("solver")
    triage = agent("triage", handoffs=[solver])
    bench = prepared(by_rules(("You are solver.", "42"), ("You are triage.", calling("transfer_to_solver"))))
    with bench.session() as session:
        result = asyncio.run(Runner.run(triage, "hi"))
    assert (result.final_output, result.last_agent.name) == ("42", "solver")
    assert agents_of(session) == ["triage", "solver"]


def test_agents_used_as_tools_at_once_have_names_of_their_own(prepared: Callable[..., Any]) -> None:
    tools = [agent(name).as_tool(name, f"Ask {name}.") for name in ("left", "right")]
    boss = agent("boss", tools=tools)
    bench = prepared(
        by_rules(
            ("You are left.", "4"),
            ("You are right.", "2"),
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("left", input="?") + "\n" + calling("right", input="?")),
        ),
        seconds=0.002,
    )
    with bench.session() as session:
        result = asyncio.run(Runner.run(boss, "hi"))
    assert result.final_output == "It is 42."
    assert sorted(agents_of(session)) == ["boss", "boss", "left", "right"]
    for exchange in session.record.exchanges:
        assert exchange.chat()[0]["content"] == f"You are {exchange.agent}."


def test_a_synchronous_run_with_a_synchronous_tool(prepared: Callable[..., Any]) -> None:
    client = openai.OpenAI(base_url=CLOSED, api_key="k", max_retries=0)

    @function_tool
    def consult(question: str) -> str:
        """Ask a model from within a tool, which runs in a thread."""
        messages: Any = [{"role": "user", "content": "What is it?"}]
        reply = client.chat.completions.create(model="m", messages=messages)
        return reply.choices[0].message.content or ""

    boss = agent("boss", tools=[consult])
    bench = prepared(
        by_rules(
            ("<tool_response>", "It is 42."),
            ("You are boss.", calling("consult", question="?")),
            ("What is it?", "42"),
        )
    )
    with bench.session() as session:
        assert Runner.run_sync(boss, "hi").final_output == "It is 42."
    assert agents_of(session) == ["boss", "boss", "boss"], "the tool is the agent's"


def test_the_users_hooks_are_called_as_ever(prepared: Callable[..., Any]) -> None:
    class Mine(RunHooks[Any]):
        def __init__(self) -> None:
            self.heard: list[str] = []

        async def on_llm_start(self, context: Any, agent: Any, *more: Any) -> None:
            self.heard.append(f"llm {agent.name}")

        async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
            self.heard.append(f"end {output}")

    hooks = Mine()
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(Runner.run(agent("solver"), "hi", hooks=hooks))
    assert hooks.heard == ["llm solver", "end yes"]
    assert agents_of(session) == ["solver"]


def test_hooks_of_the_wrong_kind_are_the_sdks_own_error(prepared: Callable[..., Any]) -> None:
    with prepared(by_rules(("hi", "yes"))).session(), pytest.raises(TypeError, match="RunHooks"):
        asyncio.run(Runner.run(agent("solver"), "hi", hooks=AgentHooks()))  # type: ignore[arg-type]


def test_names_are_known_with_tracing_disabled_and_the_users_label_wins(prepared: Callable[..., Any]) -> None:
    quiet = RunConfig(tracing_disabled=True)
    with prepared(by_rules(("hi", "yes"))).session() as session:
        asyncio.run(Runner.run(agent("solver"), "hi", run_config=quiet))
        with ajet.label(agent="mine"):
            asyncio.run(Runner.run(agent("solver"), "hi"))
    assert agents_of(session) == ["solver", "mine"]


def test_one_agent_in_many_runs_at_once(prepared: Callable[..., Any]) -> None:
    shared = {name: agent(name) for name in ("a", "b")}

    async def all_of_them() -> None:
        await asyncio.gather(*(Runner.run(shared["ab"[i % 2]], f"hi {i}") for i in range(16)))

    with prepared(by_rules(("hi", "yes")), seconds=0.002).session() as session:
        asyncio.run(all_of_them())
    assert len(session.record.exchanges) == 16
    for exchange in session.record.exchanges:
        assert exchange.chat()[0]["content"] == f"You are {exchange.agent}."


# ------------------------------------------------------------------ traces


def test_traces_are_not_uploaded_while_a_job_runs(
    prepared: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-real-key")
    get_trace_provider()
    uploads: list[Any] = []
    monkeypatch.setattr(default_processor()._exporter, "export", uploads.append)  # type: ignore[attr-defined]
    with prepared(by_rules(("hi", "yes"))).session():
        assert default_processor() not in processors()
        asyncio.run(Runner.run(agent("solver"), "hi"))
        agents.flush_traces()
    assert uploads == []


def test_the_users_own_processors_stay(prepared: Callable[..., Any]) -> None:
    class Mine(TracingProcessor):
        traces = 0

        def on_trace_start(self, trace: Any) -> None:
            self.traces += 1

        def on_trace_end(self, trace: Any) -> None: ...
        def on_span_start(self, span: Any) -> None: ...
        def on_span_end(self, span: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self) -> None: ...

    before = processors()
    mine = Mine()
    agents.add_trace_processor(mine)
    try:
        with prepared(by_rules(("hi", "yes"))).session():
            asyncio.run(Runner.run(agent("solver"), "hi"))
        assert mine.traces == 1
    finally:
        agents.set_trace_processors(list(before))


def test_afterwards_the_sdk_is_as_it_was() -> None:
    assert default_processor() in processors()
    assert not hasattr(Runner.run, "__wrapped__")
    assert "get_response" not in vars(agents.OpenAIResponsesWSModel)


# ------------------------------------------------------------------ transports


def test_the_websocket_transport_is_refused_with_the_remedy(prepared: Callable[..., Any]) -> None:
    client = openai.AsyncOpenAI(base_url=CLOSED, api_key="k")
    model = agents.OpenAIResponsesWSModel("m", client)
    with (
        prepared(by_rules(("hi", "yes"))).session(),
        pytest.raises(ajet.AjetError, match="use the default transport"),
    ):
        asyncio.run(Runner.run(Agent("solver", model=model), "hi"))
