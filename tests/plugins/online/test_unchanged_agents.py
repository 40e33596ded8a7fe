"""Unchanged agents of each framework: the user's calls are answered by the user's own model, and selected ones are repeated.
LangGraph is in the fast tier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

import ajet
from ajet.types import ConfigError
from ajet_online import ExplicitMarking, Runner, SamplingRate, ShadowRun, mark, read_only
from tests.patience import PATIENCE
from tests.tiers import fast

from .fake_explorer import KEY, PRODUCTION, FakeExplorer, Message, call_tools, fake_explorer, say

REFUSAL = "tool 'send_mail' is not read-only, so it does not run in a shadow run"


@pytest.fixture
def explorer() -> Iterator[FakeExplorer]:
    with fake_explorer() as fake:
        fake.answer = recite
        yield fake


def recite(messages: list[Message]) -> Message:
    """Repeats what the user and the tools have said, so that an answer tells what its agent remembers."""
    return say(" ".join(text(message) for message in messages if message["role"] in ("user", "tool")))


def use_tools(messages: list[Message]) -> Message:
    """Calls both tools, then repeats what they have answered."""
    results = [text(message) for message in messages if message["role"] == "tool"]
    return say(" | ".join(results)) if results else call_tools("search", "send_mail", text="cats")


def text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


class Watching:
    """A started runner that selects everything."""

    def __init__(self, explorer: FakeExplorer, **options: Any) -> None:
        self.runs: list[ShadowRun] = []
        usual: dict[str, Any] = {"select": SamplingRate(1.0), "reward": self._reward}
        self.runner = Runner(explorer=explorer.url, key=KEY, **{**usual, **options})

    def _reward(self, run: ShadowRun) -> float:
        self.runs.append(run)
        return 1.0

    def __enter__(self) -> Watching:
        self.runner.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self.runner.wait(PATIENCE)
        self.runner.stop()
        assert [run.error for run in self.runs if run.error] == []
        assert self.runner.counts.failed == self.runner.counts.feedback_failed == 0

    def said(self) -> list[str]:
        """What the agents have said last in their shadow runs, in order."""
        return sorted(run.messages[-1]["content"] for run in self.runs)


# --------------------------------------------------------------------------- functions


def test_a_call_of_an_unchanged_function_is_repeated_at_the_explorer(explorer: FakeExplorer) -> None:
    with Watching(explorer) as watching:
        answer = watching.runner.watch(explorer.ask)
        assert answer("cats") == "cats"
    (user, shadow) = explorer.calls
    assert user[0] == PRODUCTION and user[1]["temperature"] == 0
    assert shadow[0].startswith(f"{KEY}~")
    assert shadow[1] == {name: value for name, value in user[1].items() if name != "temperature"}
    (run,) = watching.runs
    assert (run.agent, run.task, run.response) == ("ask", "cats", "cats")
    assert list(run.messages) == [
        {"role": "user", "content": "cats"},
        {"role": "assistant", "content": "cats"},
    ]


def test_all_arguments_but_the_first_are_passed_on(explorer: FakeExplorer) -> None:
    lock = threading.Lock()  # which cannot be copied
    with Watching(explorer) as watching:

        @watching.runner.watch
        def answer(question: str, held: Any, *, suffix: str = "") -> str:
            assert held is lock
            return explorer.ask(question) + suffix

        assert answer("cats", lock, suffix="!") == answer(question="cats", held=lock, suffix="!") == "cats!"
    assert [run.response for run in watching.runs] == ["cats!"] * 2


def test_the_first_parameter_is_the_task_in_whatever_order_the_caller_names_them(
    explorer: FakeExplorer,
) -> None:
    with Watching(explorer) as watching:

        @watching.runner.watch
        def answer(question: str, session: str) -> str:
            return explorer.ask(question) + session

        assert answer(session="S", question="Q") == "QS"
    (run,) = watching.runs
    assert (run.task, run.response) == ("Q", "QS")


def test_streams_stay_streams(explorer: FakeExplorer) -> None:
    seen: list[Any] = []

    def choose(task: Any, response: Any, context: Any) -> Any:
        seen.append(response)
        return ExplicitMarking().select(task, response, context)

    with Watching(explorer, select=choose) as watching:

        @watching.runner.watch
        def words(question: str) -> Iterator[str]:
            mark("long")
            yield from explorer.ask(question).split()

        @watching.runner.watch
        async def words_later(question: str) -> AsyncIterator[str]:
            for word in (await asyncio.to_thread(explorer.ask, question)).split():
                yield word
            mark("async")

        stream = words("a b")
        assert next(stream) == "a" and not seen, "it is not answered yet"
        assert list(stream) == ["b"]

        async def collect() -> list[str]:
            return [word async for word in words_later("c d")]

        assert asyncio.run(collect()) == ["c", "d"]
    assert seen == [["a", "b"], ["c", "d"]]
    assert sorted((run.labels, run.response) for run in watching.runs) == [
        (("async",), ["c", "d"]),
        (("long",), ["a", "b"]),
    ]


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests", "aiohttp", "urllib"])
def test_calls_of_any_client_are_forwarded(client: str, explorer: FakeExplorer) -> None:
    import json
    import urllib.request

    module = urllib.request if client == "urllib" else pytest.importorskip(client)
    url = f"{explorer.production['base_url']}/chat/completions"
    headers = {"Authorization": f"Bearer {PRODUCTION}", "Content-Type": "application/json"}

    async def ask_aiohttp(body: Any) -> Any:
        async with module.ClientSession() as session, session.post(url, json=body, headers=headers) as reply:
            return await reply.json()

    def ask(task: str) -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": task}]}
        if client == "aiohttp":
            reply = asyncio.run(ask_aiohttp(body))
        elif client == "urllib":
            request = module.Request(url, json.dumps(body).encode(), headers)
            with module.urlopen(request) as response:
                reply = json.load(response)
        else:
            reply = module.post(url, json=body, headers=headers).json()
        return reply["choices"][0]["message"]["content"]

    with Watching(explorer) as watching:
        assert watching.runner.watch(ask)("cats") == "cats"
    assert watching.said() == ["cats"]
    assert [key == PRODUCTION for key, _ in explorer.calls] == [True, False]


def test_calls_may_go_to_their_own_endpoint(explorer: FakeExplorer) -> None:
    """Such as those of a tool that asks another model, or of embeddings."""

    def agent(task: str) -> str:
        with ajet.passthrough():
            return explorer.ask(task) + explorer.ask(task)

    with Watching(explorer, reward=lambda run: None) as watching:
        watching.runner.watch(agent)("cats")
    assert [key for key, _ in explorer.calls] == [PRODUCTION] * 4


class Once(dict[str, int]):
    """Statuses that each path has once."""

    def __getitem__(self, path: str) -> int:
        return self.pop(path)


@pytest.mark.whole
def test_calls_of_a_busy_explorer_are_repeated(explorer: FakeExplorer) -> None:
    explorer.status = Once({"/v1/chat/completions": 503})
    with Watching(explorer) as watching:
        watching.runner.watch(explorer.ask)("cats")
    assert watching.said() == ["cats"] and not explorer.status


@pytest.mark.parametrize(
    "path",
    [
        "/api/chat/",
        "/model/anthropic.claude-v1%3A0/converse",
        "/model/arn%3Aaws%3Abedrock%3Aprofile%2Fclaude/invoke-with-response-stream",
        "/v2/chat",
    ],
)
def test_calls_that_the_explorer_cannot_answer_reach_nobody(
    path: str, explorer: FakeExplorer, caplog: pytest.LogCaptureFixture
) -> None:
    def agent(task: str) -> str:
        body, headers = {"messages": [say(task)]}, {"Authorization": f"Bearer {PRODUCTION}"}
        return httpx.post(f"{explorer.url}{path}", json=body, headers=headers).raise_for_status().text

    runner = Runner(explorer=explorer.url, key=KEY, select=SamplingRate(1.0), reward=lambda run: None)
    with runner:
        runner.watch(agent)("cats")
        assert runner.wait(PATIENCE)
    assert runner.counts.failed == 1 and "400 Bad Request" in caplog.text
    assert [key for key, _ in explorer.calls] == [PRODUCTION]


def test_the_explorer_decides_how_google_api_calls_are_sampled(explorer: FakeExplorer) -> None:
    config = {"temperature": 0, "topP": 0.5, "topK": 1, "maxOutputTokens": 9}

    def agent(task: str) -> str:
        body = {"contents": [{"parts": [{"text": task}]}], "generationConfig": config}
        headers = {"Authorization": f"Bearer {PRODUCTION}"}
        return httpx.post(f"{explorer.url}/v1beta/models/m:generateContent", json=body, headers=headers).text

    with Watching(explorer) as watching:
        watching.runner.watch(agent)("cats")
    assert [body["generationConfig"] for _, body in explorer.calls] == [config, {"maxOutputTokens": 9}]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/agents/invoke"])
def test_other_calls_go_to_their_own_endpoint(path: str, explorer: FakeExplorer) -> None:
    def agent(task: str) -> str:
        body, headers = {"messages": [say(task)]}, {"Authorization": f"Bearer {PRODUCTION}"}
        return httpx.post(f"{explorer.url}{path}", json=body, headers=headers).raise_for_status().text

    with Watching(explorer, reward=lambda run: None) as watching:
        watching.runner.watch(agent)("cats")
    assert [key for key, _ in explorer.calls] == [PRODUCTION] * 2


def test_a_function_that_does_not_tell_its_parameters_is_refused() -> None:
    runner = Runner(explorer="http://127.0.0.1:1", key=KEY, reward=lambda run: None)
    with pytest.raises(ConfigError, match=r"`lambda task: \.\.\.`"):
        runner.watch(max)


def test_methods_in_class_bodies_are_refused() -> None:
    runner = Runner(explorer="http://127.0.0.1:1", key=KEY, reward=lambda run: None)
    with pytest.raises(ConfigError, match=r"agent\.answer = runner\.watch"):

        class Agent:
            @runner.watch
            def answer(self, question: str) -> str:
                return question


@pytest.mark.whole
def test_the_explorer_stores_and_rates_the_calls_of_an_unchanged_agent(
    serve: Callable[[], Any], store: Any
) -> None:
    """With the real explorer, which is also the user's own model, by another key."""
    from .serving import CHAT, OTHER

    server = serve()

    def agent(task: str) -> str:
        with server.client(OTHER) as client:
            chunks = client.chat.completions.create(
                model="gpt-5-mini",
                messages=[{"role": "user", "content": task}],
                temperature=0,
                max_tokens=8,
                stream=True,
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    runner = Runner(explorer=server.url, key=CHAT, select=SamplingRate(1.0), reward=lambda run: 0.5)
    with runner:
        answer = runner.watch(agent)("cats")
        assert runner.wait(PATIENCE)
    assert runner.counts.feedback_sent == runner.counts.commits == 1
    assert [(trace.key, trace.trained, trace.reward) for trace in store.all()] == [
        ("other", False, None),
        ("app", True, 0.5),
    ]
    assert [trace.answer["content"] for trace in store.all()] == [answer, answer]


# --------------------------------------------------------------------------- LangGraph


def graph_of(explorer: FakeExplorer, **options: Any) -> Any:
    pytest.importorskip("langgraph")
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    @tool
    @read_only
    def search(text: str) -> str:
        """Search."""
        return "found"

    @tool
    def send_mail(text: str) -> str:
        """Send."""
        return "sent"

    model = ChatOpenAI(model="m", max_retries=0, **explorer.production)  # type: ignore[arg-type]
    return create_agent(model, [search, send_mail], name="solver", **options)


def last(state: Any) -> str:
    return str(state["messages"][-1].text)


@pytest.mark.parametrize("method", ["invoke", "ainvoke", "stream", "astream"])
def test_a_graph(method: str, explorer: FakeExplorer) -> None:
    explorer.answer = use_tools
    graph = graph_of(explorer)
    asked = {"messages": [("user", "cats")]}

    async def listed() -> list[Any]:
        return [state async for state in graph.astream(asked, stream_mode="values")]

    with Watching(explorer) as watching:
        if method == "invoke":
            state = graph.invoke(asked)
        elif method == "ainvoke":
            state = asyncio.run(graph.ainvoke(asked))
        elif method == "stream":
            *_, state = graph.stream(asked, stream_mode="values")
        else:
            *_, state = asyncio.run(listed())
        assert last(state) == "found | sent"
    assert watching.said() == [f"found | {REFUSAL}"]
    assert watching.runs[0].agent == "solver" and watching.runs[0].refused_tools == ("send_mail",)


def test_a_graph_with_a_checkpointer_is_repeated_from_the_state_before_the_call(
    explorer: FakeExplorer,
) -> None:
    from langgraph.checkpoint.memory import InMemorySaver

    graph = graph_of(explorer, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "user-7"}}
    with Watching(explorer) as watching:
        for word in ("one", "two", "three"):
            graph.invoke({"messages": [("user", word)]}, config)
    assert watching.said() == ["one", "one two", "one two three"]
    texts = [message.text for message in graph.get_state(config).values["messages"]]
    assert texts == ["one", "one", "two", "one two", "three", "one two three"], (
        "the user's thread is unchanged"
    )


def test_a_graph_that_takes_text(explorer: FakeExplorer) -> None:
    func = pytest.importorskip("langgraph.func")

    @func.entrypoint()
    def solver(question: str) -> str:
        return explorer.ask(question)

    replies = iter(["two", None])
    with Watching(explorer, user=lambda messages: next(replies)) as watching:
        assert solver.invoke("one") == "one"
    assert [message["content"] for message in watching.runs[0].messages] == ["one", "one", "two", "two"]


# --------------------------------------------------------------------------- AgentScope


def scope_agent(explorer: FakeExplorer, behavior: str = "allow") -> Any:
    pytest.importorskip("agentscope.credential")
    from agentscope.agent import Agent, InjectionConfig
    from agentscope.credential import OpenAICredential
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit

    @read_only
    def search(text: str) -> str:
        """Search."""
        return "found"

    def send_mail(text: str) -> str:
        """Send."""
        return "sent"

    allowed = PermissionDecision(behavior=PermissionBehavior(behavior), message="")
    tools = [FunctionTool(function, permission=allowed) for function in (search, send_mail)]
    model = OpenAIChatModel(
        credential=OpenAICredential(**explorer.production),  # type: ignore[arg-type]
        model="m",
        stream=False,
    )
    quiet = InjectionConfig(inject_runtime_state=False)
    return Agent("solver", "Use the tools.", model, Toolkit(tools=tools), injection_config=quiet)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_an_agent_of_agentscope(streamed: bool, explorer: FakeExplorer) -> None:
    agent = scope_agent(explorer)
    from agentscope.message import UserMsg

    explorer.answer = use_tools

    async def ask() -> str:
        if not streamed:
            return str((await agent.reply(UserMsg("user", "cats"))).get_text_content())
        items = [item async for item in agent.reply_stream(UserMsg("user", "cats"), yield_final_msg=True)]
        return str(items[-1].get_text_content())

    with Watching(explorer) as watching:
        assert asyncio.run(ask()) == "found | sent"
    assert watching.said() == [f"found | {REFUSAL}"] and watching.runs[0].agent == "solver"


@pytest.mark.slow
def test_an_agent_of_agentscope_is_repeated_with_what_it_knew_before_the_call(explorer: FakeExplorer) -> None:
    agent = scope_agent(explorer)
    from agentscope.message import UserMsg

    async def talk() -> list[str]:
        return [str((await agent.reply(UserMsg("user", word))).get_text_content()) for word in ("one", "two")]

    with Watching(explorer, repeat=2) as watching:
        assert asyncio.run(talk()) == ["one", "one two"]
    assert watching.said() == ["one", "one", "one two", "one two"]
    assert [message.get_text_content() for message in agent.state.context] == ["one", "one", "two", "one two"]


@pytest.mark.slow
def test_a_call_of_agentscope_that_resumes_is_not_repeated(explorer: FakeExplorer) -> None:
    agent = scope_agent(explorer, "ask")
    from agentscope.event import UserInterruptEvent
    from agentscope.message import UserMsg

    explorer.answer = use_tools

    async def ask_and_stop() -> None:
        first, *_ = [event async for event in agent.reply_stream([UserMsg("user", "cats")])]
        assert [event async for event in agent.reply_stream(UserInterruptEvent(reply_id=first.reply_id))]

    runner = Runner(explorer=explorer.url, key=KEY, select=SamplingRate(0.0), reward=lambda run: None)
    with runner:
        asyncio.run(ask_and_stop())
    assert (runner.counts.requests, runner.counts.failed) == (1, 0)


# --------------------------------------------------------------------------- OpenAI Agents SDK


def sdk_agent(explorer: FakeExplorer) -> Any:
    agents = pytest.importorskip("agents")

    @agents.function_tool
    @read_only
    def search(text: str) -> str:
        """Search."""
        return "found"

    @agents.function_tool
    def send_mail(text: str) -> str:
        """Send."""
        return "sent"

    client = openai.AsyncOpenAI(max_retries=0, **explorer.production)  # type: ignore[arg-type]
    model = agents.OpenAIChatCompletionsModel("m", client)
    return agents.Agent("solver", tools=[search, send_mail], model=model)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["run", "run_sync", "run_streamed"])
def test_an_agent_of_the_openai_agents_sdk(method: str, explorer: FakeExplorer) -> None:
    agents, agent = pytest.importorskip("agents"), sdk_agent(explorer)
    explorer.answer = use_tools
    config = agents.RunConfig(tracing_disabled=True)

    async def streamed() -> Any:
        result = agents.Runner.run_streamed(agent, "cats", run_config=config)
        assert [event async for event in result.stream_events()]
        return result

    with Watching(explorer) as watching:
        if method == "run_streamed":
            result = asyncio.run(streamed())
        elif method == "run":
            result = asyncio.run(agents.Runner.run(agent, "cats", run_config=config))
        else:
            with asyncio.Runner() as loop:
                asyncio.set_event_loop(loop.get_loop())
                result = agents.Runner.run_sync(agent, "cats", run_config=config)
        assert result.final_output == "found | sent"
    assert watching.said() == [f"found | {REFUSAL}"] and watching.runs[0].agent == "solver"


@pytest.mark.slow
def test_a_session_is_read_and_not_written(explorer: FakeExplorer) -> None:
    agents, agent = pytest.importorskip("agents"), sdk_agent(explorer)
    config, session = agents.RunConfig(tracing_disabled=True), agents.SQLiteSession("user-7")

    async def talk() -> int:
        for word in ("one", "two"):
            await agents.Runner.run(agent, word, session=session, run_config=config)
        return len(await session.get_items())

    with Watching(explorer) as watching:
        assert asyncio.run(talk()) == 4
    assert watching.said() == ["one", "one two"]
    assert len(asyncio.run(session.get_items())) == 4


# --------------------------------------------------------------------------- AutoGen


def assistant(explorer: FakeExplorer) -> Any:
    pytest.importorskip("autogen_agentchat")
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    @read_only
    def search(text: str) -> str:
        """Search."""
        return "found"

    def send_mail(text: str) -> str:
        """Send."""
        return "sent"

    info = {
        "vision": False,
        "function_calling": True,
        "json_output": False,
        "structured_output": False,
        "family": "x",
    }
    client = OpenAIChatCompletionClient(model="m", model_info=info, max_retries=0, **explorer.production)  # type: ignore[arg-type, misc]
    return AssistantAgent("solver", client, tools=[search, send_mail], reflect_on_tool_use=True)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
def test_an_assistant_of_autogen(streamed: bool, explorer: FakeExplorer) -> None:
    agent = assistant(explorer)
    explorer.answer = use_tools

    async def ask() -> str:
        if not streamed:
            return str((await agent.run(task="cats")).messages[-1].content)
        return str([item async for item in agent.run_stream(task="cats")][-1].messages[-1].content)

    with Watching(explorer) as watching:
        assert asyncio.run(ask()) == "found | sent"
    assert watching.said() == [f"found | {REFUSAL}"] and watching.runs[0].agent == "solver"


@pytest.mark.slow
def test_an_assistant_of_autogen_is_repeated_with_what_it_knew_before_the_call(
    explorer: FakeExplorer,
) -> None:
    agent = assistant(explorer)

    async def talk() -> list[str]:
        return [str((await agent.run(task=word)).messages[-1].content) for word in ("one", "two")]

    with Watching(explorer) as watching:
        assert asyncio.run(talk()) == ["one", "one two"]
    assert watching.said() == ["one", "one two"]


# --------------------------------------------------------------------------- a user of several turns


def make_function(explorer: FakeExplorer) -> tuple[Any, Callable[[Any], Any]]:
    return explorer.ask, lambda asked: asked("one")


def make_graph(explorer: FakeExplorer) -> tuple[Any, Callable[[Any], Any]]:
    return graph_of(explorer), lambda graph: graph.invoke({"messages": [("user", "one")]})


def make_scope(explorer: FakeExplorer) -> tuple[Any, Callable[[Any], Any]]:
    agent = scope_agent(explorer)
    from agentscope.message import UserMsg

    return agent, lambda agent: asyncio.run(agent.reply(UserMsg("user", "one")))


def make_sdk(explorer: FakeExplorer) -> tuple[Any, Callable[[Any], Any]]:
    agents = pytest.importorskip("agents")
    config = agents.RunConfig(tracing_disabled=True)
    return sdk_agent(explorer), lambda agent: asyncio.run(agents.Runner.run(agent, "one", run_config=config))


def make_assistant(explorer: FakeExplorer) -> tuple[Any, Callable[[Any], Any]]:
    return assistant(explorer), lambda agent: asyncio.run(agent.run(task="one"))


@pytest.mark.parametrize(
    "make", fast({0, 1}, [make_function, make_graph, make_scope, make_sdk, make_assistant])
)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_simulated_user_answers_the_agent_until_it_has_nothing_to_say(
    make: Callable[[FakeExplorer], Any], is_async: bool, explorer: FakeExplorer
) -> None:
    """Its own LLM calls are not a part of the shadow run."""
    heard: list[list[str]] = []

    def user(messages: Any) -> str | None:
        heard.append([f"{message['role']}: {message['content']}" for message in messages])
        return explorer.ask("two") if len(messages) == 2 else None

    async def user_async(messages: Any) -> str | None:
        return await asyncio.to_thread(user, messages)

    agent, ask = make(explorer)
    with Watching(explorer, user=user_async if is_async else user) as watching:
        ask(watching.runner.watch(agent) if make is make_function else agent)
    final = "two" if make is make_function else "one two"  # the function has no memory
    first = ["user: one", "assistant: one"]
    assert heard == [first, [*first, "user: two", f"assistant: {final}"]]
    assert watching.said() == [final]
    assert [key == PRODUCTION for key, _ in explorer.calls] == [True, False, True, False]
    (run,) = watching.runs
    assert len(run.messages) == 4 and len(explorer.feedback) == 1
