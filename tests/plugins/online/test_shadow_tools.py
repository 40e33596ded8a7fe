"""Tools in shadow runs: those that are declared read-only run, the others never do, and the model is told."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest

from ajet.types import ConfigError
from ajet_online import SamplingRate, ShadowRun, guard_tools, in_shadow_run, read_only
from ajet_online.runner import patches
from tests.patience import PATIENCE

from .fake_explorer import KEY, FakeExplorer, Message, Service, call_tools, fake_explorer, say

REFUSAL = "tool 'send_mail' is not read-only, so it does not run in a shadow run"


class Desk:
    """Tools that count their calls, of users' requests and of shadow runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.calls: dict[tuple[str, bool], int] = {}

    def note(self, name: str) -> str:
        with self._lock:
            key = (name, in_shadow_run())
            self.calls[key] = self.calls.get(key, 0) + 1
        return f"result of {name}"

    def count(self, name: str, *, shadow: bool) -> int:
        return self.calls.get((name, shadow), 0)


def ask_for_tools(messages: list[Message]) -> Message:
    """Calls both tools, then repeats what they have answered."""
    results = [text_of(message["content"]) for message in messages if message["role"] == "tool"]
    return say(" | ".join(results)) if results else call_tools("search", "send_mail", text="cats")


def text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.fixture
def explorer() -> Iterator[FakeExplorer]:
    with fake_explorer() as fake:
        fake.answer = ask_for_tools
        yield fake


Agent = Callable[[Any], Any]


def in_production_and_shadow(
    explorer: FakeExplorer, agent: Agent, task: Any = "cats", **options: Any
) -> tuple[Any, ShadowRun, Service]:
    """One request, which is answered and repeated: the user's answer, the shadow run, the stopped runner."""
    runs: list[ShadowRun] = []
    runner = Service(
        agent,
        explorer=explorer.url,
        key=KEY,
        select=SamplingRate(1.0),
        reward=runs.append,
        **options,
    )
    with runner:
        answer = runner.run(task)
        assert runner.wait(PATIENCE)
    (run,) = runs
    return answer, run, runner


def check(explorer: FakeExplorer, desk: Desk, agent: Agent, **options: Any) -> None:
    """In production both tools run. In the shadow run the write tool does not, and the model sees why."""
    answer, run, runner = in_production_and_shadow(explorer, agent, **options)
    assert run.error is None
    assert answer == "result of search | result of send_mail"
    assert run.response == f"result of search | {REFUSAL}"
    assert run.refused_tools == ("send_mail",) and runner.counts.refused_tools == 1
    assert desk.calls == {("search", False): 1, ("send_mail", False): 1, ("search", True): 1}


# --------------------------------------------------------------------------- plain functions


def plain_agent(explorer: FakeExplorer, desk: Desk) -> Agent:
    @read_only
    def search(text: str) -> str:
        return desk.note("search")

    def send_mail(text: str) -> str:
        return desk.note("send_mail")

    tools = guard_tools({"search": search, "send_mail": send_mail})

    def agent(task: str) -> str:
        with openai.OpenAI(**explorer.production, max_retries=0) as client:
            messages: list[Any] = [{"role": "user", "content": task}]
            while True:
                message = client.chat.completions.create(model="m", messages=messages).choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    return str(message.content)
                for call in message.tool_calls:
                    result = tools[call.function.name](**json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return agent


def test_a_loop_on_the_openai_sdk(explorer: FakeExplorer) -> None:
    desk = Desk()
    check(explorer, desk, plain_agent(explorer, desk))


def test_an_async_loop_with_async_tools(explorer: FakeExplorer) -> None:
    desk = Desk()

    @guard_tools
    async def search(text: str) -> str:
        return desk.note("search")

    @guard_tools
    async def send_mail(text: str) -> str:
        return desk.note("send_mail")

    async def agent(task: str) -> str:
        return f"{await search('cats')} | {await send_mail('cats')}"

    check(explorer, desk, agent, read_only=("search",))


def test_what_wraps_or_resembles_a_declared_function_is_not_declared() -> None:
    import copy
    from functools import wraps

    from ajet_online.runner.shadow import is_read_only

    class Database:
        def execute(self) -> None: ...

    @read_only
    def find() -> None: ...

    @wraps(find)
    def audited() -> None: ...  # which writes

    primary, replica = Database(), Database()
    read_only(replica.execute)
    assert is_read_only(find) and is_read_only(replica.execute)
    assert not is_read_only(audited) and not is_read_only(primary.execute)
    assert not is_read_only(copy.copy(replica).execute) and not is_read_only(guard_tools(audited))


def test_methods_and_guarded_functions_can_be_declared() -> None:
    from functools import partial

    from ajet_online.runner.shadow import is_read_only

    class Tools:
        @read_only
        def search(self) -> str:
            return "found"

        @read_only
        @staticmethod
        def look() -> str:
            return "seen"

        def write(self) -> None: ...

    tools = Tools()
    read_only(tools.write)  # after the fact, also of one object

    guarded = guard_tools(guard_tools(tools.search))
    assert all(map(is_read_only, (tools.search, Tools.look, tools.write, guarded, partial(tools.search))))
    assert not is_read_only(Tools) and not is_read_only(tools)
    with pytest.raises(ConfigError, match="directly above `def`"):
        read_only(len)


def test_guarded_functions_are_unchanged_outside_shadow_runs() -> None:
    def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    guarded = guard_tools(add)
    assert (guarded(1, b=2), guarded.__name__, guarded.__doc__) == (3, "add", "Adds.")
    assert guard_tools({"plus": add})["plus"](1) == 2


# --------------------------------------------------------------------------- LangGraph and LangChain


def langgraph_agent(explorer: FakeExplorer, desk: Desk, kind: str = "sync") -> Agent:
    pytest.importorskip("langgraph")
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    if kind == "coroutine":

        @tool
        @read_only
        async def search(text: str) -> str:
            """Search."""
            return desk.note("search")

        @tool
        async def send_mail(text: str) -> str:
            """Send."""
            return desk.note("send_mail")

    else:

        @tool
        @read_only
        def search(text: str) -> str:
            """Search."""
            return desk.note("search")

        @tool
        def send_mail(text: str) -> str:
            """Send."""
            return desk.note("send_mail")

    def graph() -> Any:
        chat = ChatOpenAI(**explorer.production, model="m", max_retries=0)
        return create_agent(chat, [search, send_mail])

    def agent(task: str) -> str:
        return str(graph().invoke({"messages": [("user", task)]})["messages"][-1].text)

    async def agent_async(task: str) -> str:
        state = await graph().ainvoke({"messages": [("user", task)]})
        return str(state["messages"][-1].text)

    return agent if kind == "sync" else agent_async


@pytest.mark.parametrize("kind", ["sync", "async", "coroutine"])
def test_a_prebuilt_agent_of_langgraph(kind: str, explorer: FakeExplorer) -> None:
    desk = Desk()
    check(explorer, desk, langgraph_agent(explorer, desk, kind))


def test_a_tool_node_in_a_graph_of_ones_own_with_names_declared(explorer: FakeExplorer) -> None:
    pytest.importorskip("langgraph")
    from langchain_core.tools import StructuredTool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

    desk = Desk()

    def noting(name: str) -> Callable[[str], str]:
        def function(text: str) -> str:
            return desk.note(name)

        return function

    tools = [
        StructuredTool.from_function(noting(name), name=name, description=name)
        for name in ("search", "send_mail")
    ]

    def agent(task: str) -> str:
        chat = ChatOpenAI(**explorer.production, model="m")
        bound = chat.bind_tools(tools)
        builder = StateGraph(MessagesState)
        builder.add_node("model", lambda state: {"messages": [bound.invoke(state["messages"])]})
        builder.add_node("tools", ToolNode(tools))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", tools_condition)
        builder.add_edge("tools", "model")
        state = builder.compile().invoke({"messages": [("user", task)]})
        return str(state["messages"][-1].text)

    check(explorer, desk, agent, read_only=("search",))


def test_every_way_to_call_a_langchain_tool_is_guarded(explorer: FakeExplorer) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.tools import BaseTool, tool

    desk = Desk()

    @tool
    def send_mail(text: str) -> str:
        """Send."""
        return desk.note("send_mail")

    class Overriding(BaseTool):
        name: str = "send_mail"
        description: str = "Send."

        def _run(self, text: str) -> str:
            return desk.note("send_mail")

        def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
            return self._run("directly")

    class HalfDeclared(BaseTool):
        name: str = "send_mail"
        description: str = "Only one of its methods is declared."

        @read_only
        def _run(self, text: str) -> str:
            return desk.note("send_mail")

        async def _arun(self, text: str) -> str:
            return desk.note("send_mail")

    def agent(task: str) -> list[Any]:
        class MadeLater(Overriding): ...

        class MadeLaterOverriding(Overriding):
            def run(self, *args: Any, **kwargs: Any) -> Any:
                return self._run("directly")

        results = []
        call = {"type": "tool_call", "id": "7", "name": "send_mail", "args": {"text": "cats"}}
        for one in (send_mail, Overriding(), HalfDeclared(), MadeLater(), MadeLaterOverriding()):
            for given in ({"text": "cats"}, call):
                results += [one.invoke(given), asyncio.run(one.ainvoke(given))]
            results += [one.run({"text": "cats"}), asyncio.run(one.arun({"text": "cats"}))]
        return results

    answer, run, _ = in_production_and_shadow(explorer, agent)
    assert desk.count("send_mail", shadow=True) == 0 and desk.count("send_mail", shadow=False) == 30
    assert run.error is None and len(run.response) == len(answer) == 30
    assert {getattr(one, "content", one) for one in run.response} == {REFUSAL}
    messages = [one for one in run.response if not isinstance(one, str)]
    assert {(one.tool_call_id, one.status, one.name) for one in messages} == {("7", "error", "send_mail")}


def test_declared_classes_and_objects_of_langchain_run(explorer: FakeExplorer) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.tools import BaseTool, tool

    class Search(BaseTool):
        name: str = "search"
        description: str = "Search."

        @read_only
        def _run(self, text: str) -> str:
            return f"found {text}"

    @read_only
    @tool
    def look(text: str) -> str:
        """Look."""
        return f"seen {text}"

    def agent(task: str) -> list[str]:
        return [Search().invoke({"text": task}), look.invoke({"text": task})]

    answer, run, _ = in_production_and_shadow(explorer, agent)
    assert answer == run.response == ["found cats", "seen cats"]


# --------------------------------------------------------------------------- AgentScope


def agentscope_agent(explorer: FakeExplorer, desk: Desk) -> Agent:
    pytest.importorskip("agentscope.credential")
    from agentscope.agent import Agent as ScopeAgent
    from agentscope.credential import OpenAICredential
    from agentscope.message import UserMsg
    from agentscope.model import OpenAIChatModel
    from agentscope.permission import PermissionBehavior, PermissionDecision
    from agentscope.tool import FunctionTool, Toolkit

    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")

    @read_only
    def search(text: str) -> str:
        """Search."""
        return desk.note("search")

    def send_mail(text: str) -> str:
        """Send."""
        return desk.note("send_mail")

    async def agent(task: str) -> str:
        credential = OpenAICredential(**explorer.production)
        chat = OpenAIChatModel(credential=credential, model="m", stream=False)
        # What the framework itself holds for read-only is not a declaration.
        tools = [
            FunctionTool(function, permission=allowed, is_read_only=True) for function in (search, send_mail)
        ]
        solver = ScopeAgent("solver", "Use the tools.", chat, Toolkit(tools=tools))
        return str((await solver.reply(UserMsg("user", task))).get_text_content())

    return agent


@pytest.mark.slow
def test_an_agent_of_agentscope(explorer: FakeExplorer) -> None:
    desk = Desk()
    check(explorer, desk, agentscope_agent(explorer, desk))


@pytest.mark.slow
def test_a_tool_of_agentscope_that_is_called_directly(explorer: FakeExplorer) -> None:
    pytest.importorskip("agentscope.credential")
    from agentscope.tool import FunctionTool

    desk = Desk()

    def send_mail(text: str) -> str:
        """Send."""
        return desk.note("send_mail")

    async def agent(task: str) -> str:
        return str((await FunctionTool(send_mail)(text=task)).content[0].text)

    answer, run, _ = in_production_and_shadow(explorer, agent)
    assert (answer, run.response) == ("result of send_mail", REFUSAL)
    assert desk.count("send_mail", shadow=True) == 0


# --------------------------------------------------------------------------- OpenAI Agents SDK


def openai_agent(
    explorer: FakeExplorer, desk: Desk, *, as_tool: bool = False, synchronous: bool = False
) -> Agent:
    agents = pytest.importorskip("agents")

    @agents.function_tool
    @read_only
    def search(text: str) -> str:
        """Search."""
        return desk.note("search")

    @agents.function_tool
    async def send_mail(text: str) -> str:
        """Send."""
        return desk.note("send_mail")

    def made() -> Any:
        client = openai.AsyncOpenAI(**explorer.production, max_retries=0)
        chat = agents.OpenAIChatCompletionsModel("m", client)
        inner = agents.Agent("inner", tools=[search, send_mail], model=chat)
        if not as_tool:
            return inner
        return agents.Agent(
            "outer", instructions="outer", tools=[inner.as_tool("expert", "Ask.")], model=chat
        )

    config = agents.RunConfig(tracing_disabled=True)

    async def agent(task: str) -> str:
        return str((await agents.Runner.run(made(), task, run_config=config)).final_output)

    def agent_sync(task: str) -> str:
        with asyncio.Runner() as loop:  # run_sync needs a current loop, which threads do not have
            asyncio.set_event_loop(loop.get_loop())
            return str(agents.Runner.run_sync(made(), task, run_config=config).final_output)

    return agent_sync if synchronous else agent


@pytest.mark.slow
@pytest.mark.parametrize("synchronous", [False, True])
def test_an_agent_of_the_openai_agents_sdk(synchronous: bool, explorer: FakeExplorer) -> None:
    desk = Desk()
    check(explorer, desk, openai_agent(explorer, desk, synchronous=synchronous))


@pytest.mark.slow
def test_an_agent_as_a_tool_runs_and_its_own_tools_are_checked(explorer: FakeExplorer) -> None:
    def answer(messages: list[Message]) -> Message:
        if messages[0].get("content") == "outer" and messages[-1]["role"] == "user":
            return call_tools("expert", input="cats")
        return ask_for_tools(messages)

    explorer.answer = answer
    desk = Desk()
    check(explorer, desk, openai_agent(explorer, desk, as_tool=True))


@pytest.mark.slow
def test_shell_tools_end_the_shadow_run(explorer: FakeExplorer) -> None:
    """They are on the Responses wire alone, and their outputs have no place for a refusal."""
    agents = pytest.importorskip("agents")
    from types import SimpleNamespace

    from agents.run_internal.tool_actions import ShellAction

    ran = []
    shell = agents.ShellTool(executor=ran.append)

    async def agent(task: str) -> str:
        call = SimpleNamespace(shell_tool=shell, tool_call=None)
        if in_shadow_run():
            await ShellAction.execute(
                agent=agents.Agent("a"), call=call, hooks=None, context_wrapper=None, config=None
            )
        return "answer"

    _, run, runner = in_production_and_shadow(explorer, agent)
    assert "tool 'shell' is not read-only" in str(run.error)
    assert run.refused_tools == ("shell",) and runner.counts.failed == 1 and not ran


# --------------------------------------------------------------------------- patches


def unpatched_base() -> Any:
    """LangChain's module of tools, once the shadow runs of earlier tests, which keep the patches, have ended."""
    base = pytest.importorskip("langchain_core.tools.base")
    deadline = time.monotonic() + PATIENCE
    while patches._blocks and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not patches._blocks
    return base


def test_patches_are_undone_when_the_last_runner_has_stopped(explorer: FakeExplorer) -> None:
    base = unpatched_base()
    before = {name: vars(base.BaseTool)[name] for name in ("invoke", "run", "__init_subclass__")}
    first, last = (Service(print, explorer=explorer.url, key=KEY, reward=print) for _ in range(2))
    with last:
        with first:
            pass
        assert vars(base.BaseTool)["invoke"] is not before["invoke"]
    assert {name: vars(base.BaseTool)[name] for name in before} == before


def test_classes_with_several_bases_are_restored_too(explorer: FakeExplorer) -> None:
    base = unpatched_base()

    class Left(base.BaseTool): ...  # type: ignore[misc, name-defined]

    class Right(base.BaseTool): ...  # type: ignore[misc, name-defined]

    class Both(Left, Right):
        def run(self, *args: Any, **kwargs: Any) -> Any: ...

    before = vars(Both)["run"]
    runner = Service(print, explorer=explorer.url, key=KEY, reward=print)
    with runner:
        assert vars(Both)["run"] is not before
    assert vars(Both)["run"] is before


LATER = {
    "langchain_core": """
        from langchain_core.tools import StructuredTool
        tool = StructuredTool.from_function(send_mail, name="send_mail", description="Send.")
        return tool.invoke({"text": task})
    """,
    "agentscope": """
        from agentscope.tool import FunctionTool
        import asyncio
        return asyncio.run(FunctionTool(send_mail)(text=task)).content[0].text
    """,
    "agents": """
        from agents import Agent, function_tool
        from agents.tool import invoke_function_tool
        from agents.tool_context import ToolContext
        import asyncio
        context = ToolContext(None, tool_name="send_mail", tool_call_id="1", tool_arguments="{}")
        tool = function_tool(send_mail)
        return asyncio.run(invoke_function_tool(function_tool=tool, context=context, arguments='{"text": "a"}'))
    """,
}


@pytest.mark.parametrize(
    "framework",
    ["langchain_core", *(pytest.param(name, marks=pytest.mark.slow) for name in ("agentscope", "agents"))],
)
def test_a_framework_that_is_imported_after_the_start_is_guarded(framework: str) -> None:
    pytest.importorskip(framework)
    program = f"""
import sys
from ajet_online import Runner, SamplingRate

calls = []

def send_mail(text: str) -> str:
    "Send."
    calls.append(text)
    return "sent"

def agent(task):
{LATER[framework]}

answers = []
runner = Runner(
    explorer="http://127.0.0.1:1", key="k", select=SamplingRate(1.0),
    reward=lambda run: answers.append(run.response or run.error),
)
run = runner.watch(agent)
with runner:
    assert {framework!r} not in sys.modules
    print(run("cats"))
    runner.wait({PATIENCE})
print(answers[0])
print(len(calls))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout.splitlines() == ["sent", REFUSAL, "1"], done.stderr


def test_an_abandoned_shadow_run_stays_guarded_after_its_runner_has_stopped(explorer: FakeExplorer) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.tools import tool

    results: list[Any] = []
    entered, go_on, left = threading.Event(), threading.Event(), threading.Event()

    @tool
    def send_mail(text: str) -> str:
        """Send."""
        return "sent"

    def agent(task: str) -> str:
        if in_shadow_run():
            entered.set()
            go_on.wait(PATIENCE)
            results.append(send_mail.invoke({"text": task}))
            left.set()
        return "answer"

    runner = Service(
        agent,
        explorer=explorer.url,
        key=KEY,
        reward=print,
        select=SamplingRate(1.0),
    )
    runner.start()
    runner.run("cats")
    assert entered.wait(PATIENCE)
    runner.stop(0)
    go_on.set()
    assert left.wait(PATIENCE)
    assert results == [REFUSAL]


def test_a_framework_that_cannot_be_guarded_stops_shadow_runs(
    explorer: FakeExplorer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its write tools would run in them."""
    base = pytest.importorskip("langchain_core.tools.base")
    monkeypatch.setattr(base, "BaseTool", object)
    runner = Service(
        lambda task: "answer",
        explorer=explorer.url,
        key=KEY,
        select=SamplingRate(1.0),
        reward=print,
    )
    with runner:
        assert runner.run("cats") == "answer"
        assert runner.wait(PATIENCE)
    assert (runner.counts.dropped, runner.counts.shadow_runs) == (1, 0)
    assert "langchain_core.tools.base has changed" in caplog.text
    assert not patches._blocks


# --------------------------------------------------------------------------- all together


@pytest.mark.slow
def test_no_write_tool_runs_in_500_shadow_runs(explorer: FakeExplorer) -> None:
    desk = Desk()
    agents = [
        plain_agent(explorer, desk),
        langgraph_agent(explorer, desk),
        langgraph_agent(explorer, desk, "coroutine"),
        agentscope_agent(explorer, desk),
        openai_agent(explorer, desk),
    ]
    runs: list[ShadowRun] = []
    runners = [
        Service(
            agent,
            explorer=explorer.url,
            key=KEY,
            select=SamplingRate(1.0),
            reward=runs.append,
            repeat=10,
            pool=4,
        )
        for agent in agents
    ]
    for runner in runners:
        runner.start()

    async def requests() -> None:
        for task in range(10):
            answers = [await runner.arun(f"task {task}") for runner in runners]
            assert set(answers) == {"result of search | result of send_mail"}

    asyncio.run(requests())
    for runner in runners:
        assert runner.wait(PATIENCE)
        runner.stop()
        assert (runner.counts.shadow_runs, runner.counts.refused_tools) == (100, 100)
        assert (runner.counts.failed, runner.counts.timed_out, runner.counts.dropped) == (0, 0, 0)
    assert {run.response for run in runs} == {f"result of search | {REFUSAL}"} and len(runs) == 500
    assert desk.calls == {("search", False): 50, ("send_mail", False): 50, ("search", True): 500}
