"""In shadow runs only read-only tools run, whatever the framework; the model sees why the others do not."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet_online import Model, Runner, SamplingRate, ShadowRun, guard_tools, read_only

REFUSED = "tool 'send_mail' is not read-only, so it does not run in a shadow run"
CALLS: Counter[str] = Counter()
"""How often each tool has run."""


def look_up(word: str) -> str:
    """Look up a word."""
    CALLS["look_up"] += 1
    return f"{word} means so"


def send_mail(text: str) -> str:
    """Send a mail."""
    CALLS["send_mail"] += 1
    return "sent"


class Models:
    """Both models: each chat calls `look_up`, then `send_mail`, then answers with what the tools have said."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("/v1")
        self.explorer = server.url_for("")
        self._ids = itertools.count()
        server.expect_request("/v1/chat/completions", method="POST").respond_with_handler(self._chat)
        for path in ("/feedback", "/commit"):
            server.expect_request(path, method="POST").respond_with_json({})

    def _chat(self, request: Request) -> Response:
        asked = json.loads(request.data)
        results = [m["content"] for m in asked["messages"] if m["role"] == "tool"]
        said = [r if isinstance(r, str) else "".join(part["text"] for part in r) for r in results]
        message: dict[str, Any] = {"role": "assistant", "content": " | ".join(said)}
        reason = "stop"
        if len(said) < 2:
            name, arguments = (("look_up", {"word": "ajet"}), ("send_mail", {"text": "hi"}))[len(said)]
            function = {"name": name, "arguments": json.dumps(arguments)}
            call = {"id": f"call{next(self._ids)}", "type": "function", "function": function}
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            reason = "tool_calls"
        body = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": asked["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        return Response(json.dumps(body), content_type="application/json")


@pytest.fixture(autouse=True)
def none_yet() -> None:
    CALLS.clear()


@pytest.fixture
def models(httpserver: HTTPServer) -> Models:
    return Models(httpserver)


def plain_agent() -> Callable[..., Any]:
    """A loop over the OpenAI SDK."""
    import openai

    tools = guard_tools({"look_up": look_up, "send_mail": send_mail})

    def run(task: str, model: Model) -> str:
        client = openai.OpenAI(base_url=model.base_url, api_key=model.api_key)
        messages: list[Any] = [{"role": "user", "content": task}]
        while True:
            reply = client.chat.completions.create(model=model.name, messages=messages).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content or ""
            for call in reply.tool_calls:
                result = tools[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return run


def langgraph_agent() -> Callable[..., Any]:
    """A graph with a node of tools, which LangGraph runs in threads."""
    pytest.importorskip("langgraph")
    openai_chat = pytest.importorskip("langchain_openai")
    from langchain_core.tools import tool
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    tools = [tool(read_only(look_up)), tool(send_mail)]

    def run(task: str, model: Model) -> str:
        llm = openai_chat.ChatOpenAI(base_url=model.base_url, api_key=model.api_key, model=model.name)

        def ask(state: Any) -> Any:
            return {"messages": [llm.bind_tools(tools).invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode(tools))
        graph.add_edge(START, "ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        ended = graph.compile().invoke({"messages": [("user", task)]})
        return str(ended["messages"][-1].content)

    return run


def agentscope_agent() -> Callable[..., Any]:
    """An agent of AgentScope 2."""
    agentscope = pytest.importorskip("agentscope")
    if agentscope.__version__.startswith("1."):
        pytest.skip("AgentScope 2")
    from agentscope.agent import Agent
    from agentscope.credential import OpenAICredential
    from agentscope.message import TextBlock, UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, ToolChunk, Toolkit

    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")

    def chunked(function: Callable[..., str]) -> Callable[..., Any]:
        async def tool(**given: str) -> ToolChunk:
            return ToolChunk(content=[TextBlock(text=function(**given))])

        tool.__name__, tool.__doc__ = function.__name__, function.__doc__
        tool.__signature__ = __import__("inspect").signature(function)  # type: ignore[attr-defined]
        return tool

    async def run(task: str, model: Model) -> str:
        tools = [
            FunctionTool(chunked(look_up), is_read_only=True, permission=allowed),
            FunctionTool(chunked(send_mail), permission=allowed),
        ]
        chat = OpenAIChatModel(
            credential=OpenAICredential(api_key=model.api_key, base_url=model.base_url),
            model=model.name,
            stream=False,
        )
        agent = Agent(name="a", system_prompt="Help.", model=chat, toolkit=Toolkit(tools=tools))
        reply = await agent.reply(UserMsg("user", task))
        return reply.get_text_content() or ""

    return run


def openai_agents_agent() -> Callable[..., Any]:
    """An agent of the OpenAI Agents SDK, whose read-only tool the runner knows by name."""
    agents = pytest.importorskip("agents")
    import openai

    tools = [agents.function_tool(look_up), agents.function_tool(send_mail)]

    async def run(task: str, model: Model) -> str:
        client = openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key)
        chat = agents.OpenAIChatCompletionsModel(model.name, openai_client=client)
        agent = agents.Agent(name="a", model=chat, tools=tools)
        config = agents.RunConfig(tracing_disabled=True)
        return str((await agents.Runner.run(agent, task, run_config=config)).final_output)

    return run


AGENTS = [plain_agent, langgraph_agent, agentscope_agent, openai_agents_agent]


def runner_of(agent: Any, models: Models, seen: list[ShadowRun], **options: Any) -> Runner:
    return Runner(
        agent,
        explorer=models.explorer,
        key="runner-key-0123456789",
        model=Model(models.url, "k", "own"),
        select=SamplingRate(1.0),
        reward=seen.append,
        read_only=["look_up"],
        **options,
    )


def ask(runner: Runner, agent: Any) -> Any:
    return asyncio.run(runner.arun("x")) if asyncio.iscoroutinefunction(agent) else runner.run("x")


@pytest.mark.parametrize("make", AGENTS)
def test_only_read_only_tools_run_and_the_model_is_told(make: Callable[[], Any], models: Models) -> None:
    agent, seen = make(), list[ShadowRun]()
    with runner_of(agent, models, seen) as runner:
        assert ask(runner, agent) == "ajet means so | sent"
    assert CALLS == {"look_up": 2, "send_mail": 1}, "the user's own run may do everything"
    (run,) = seen
    assert run.response == f"ajet means so | {REFUSED}"
    assert run.refused_tools == ("send_mail",) and runner.counts["refused_tools"] == 1
    assert ask(runner, agent) == "ajet means so | sent", "and so may everything after the end"


@pytest.mark.slow
def test_no_tool_that_writes_runs_in_500_shadow_runs(httpserver: HTTPServer) -> None:
    models = Models(httpserver)
    agents: Iterator[Any] = itertools.cycle([make() for make in AGENTS])
    for _ in range(10):
        agent, seen = next(agents), list[ShadowRun]()
        with runner_of(agent, models, seen, repeat=50, pool=4) as runner:
            ask(runner, agent)
        assert len(seen) == 50 and {run.refused_tools for run in seen} == {("send_mail",)}
    assert CALLS == {"look_up": 10 * 51, "send_mail": 10}


def test_guarded_functions_outside_of_shadow_runs_are_unchanged() -> None:
    @guard_tools
    def plain(number: int) -> int:
        return number + 1

    @guard_tools
    async def asynchronous(number: int) -> int:
        return number + 2

    assert plain(1) == 2 and asyncio.run(asynchronous(1)) == 3
