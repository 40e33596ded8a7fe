"""Tools of MCP servers that nobody here wrote, in the workflow `chat` and in an agent of one's own."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import ConfigError, Task, load_run
from ajet.cli import run_program
from ajet_environments import ChatWorkflow, McpTools
from tests.patience import PATIENCE
from tests.plugins.environments.libraries import PYTHON, assert_trained, long_starter, needs_library
from tests.tiers import fast

pytestmark = pytest.mark.models("starter")
pytest.importorskip("mcp")

SUMS = """
import sys
try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:
    from mcp.server.mcpserver import MCPServer as Server
server = Server("sums")
@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b
server.run(*sys.argv[1:])
"""
"""A server of our own, for what every machine can test."""
ADDS = [
    {"turn": 0, "call": {"name": "add", "arguments": {"a": 12, "b": 30}}},
    {"when": "42", "say": "It is 42."},
]


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The program of a server, of which no process is left in the end."""
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "sums.py"
    program.write_text(SUMS)
    yield program
    assert not running(program)


def running(program: Path) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if str(program) in words:
            found.append(file.parent.name)
    return found


def check(workflow: dict[str, Any], answers: list[Any], query: str = "12 + 30", answer: str = "42") -> Any:
    """The episode of a check of one task."""
    Path("tasks.jsonl").write_text(f'{{"query": "{query}", "answer": "{answer}"}}')
    Path("answers.yaml").write_text(yaml.safe_dump(answers))
    job = {"task": {"reader": "tasks.jsonl"}, "workflow": {"type": "chat", **workflow}, "judge": "contains"}
    Path("job.yaml").write_text(yaml.safe_dump({**job, "model": "starter", "rollout": {"retries": 0}}))
    before = set(Path().glob("runs/*"))
    run_program(["check", "job.yaml", "--answers", "answers.yaml", "--group-size", "1"])
    (folder,) = set(Path().glob("runs/*")) - before
    (episode,) = load_run(folder).episodes()
    return episode


@pytest.mark.kept
def test_the_model_calls_the_tools_of_a_server_and_reads_what_they_say(sums: Path) -> None:
    episode = check({"tools": {"type": "mcp", "command": [sys.executable, str(sums)]}}, ADDS)
    assert (episode.failure, episode.reward, episode.calls) == (None, 1.0, 2)
    assert len(episode.timelines) == 1 and episode.response == "It is 42."


PAGES = """
import asyncio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
server = Server("pages")
def tool(name):
    return types.Tool(name=name, description=name, inputSchema={"type": "object", "properties": {}})
@server.list_tools()
async def listed(request: types.ListToolsRequest) -> types.ListToolsResult:
    first = not (request.params and request.params.cursor)
    return types.ListToolsResult(tools=[tool("a" if first else "b")], nextCursor="2" if first else None)
@server.call_tool()
async def called(name, arguments):
    resource = types.TextResourceContents(uri="file:///readme", mimeType="text/plain", text="What it holds")
    return [types.TextContent(type="text", text="read"), types.EmbeddedResource(type="resource", resource=resource)]
async def main():
    async with stdio_server() as streams:
        await server.run(*streams, server.create_initialization_options())
asyncio.run(main())
"""


def test_all_pages_of_tools_are_offered_and_the_text_of_resources_is_read(sums: Path) -> None:
    pytest.importorskip("mcp.server.lowlevel")
    sums.write_text(PAGES)

    async def tried() -> tuple[list[str], str]:
        async with McpTools(command=(sys.executable, str(sums))).opened() as tools:
            return [f["function"]["name"] for f in tools.functions], await tools.call("b", {})

    assert asyncio.run(tried()) == (["a", "b"], "read\nWhat it holds")


AGENT = """
import openai
async def run(task, tuner, tools):
    client = openai.AsyncOpenAI(base_url="http://model.invalid/v1", api_key="any")
    messages = [{"role": "user", "content": task.query}]
    while True:
        answer = await client.chat.completions.create(model="any", messages=messages, tools=tools.functions)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        if "tool_calls" not in messages[-1]:
            return f"said: {messages[-1]['content']}"
        messages += [await tools.answer(call) for call in messages[-1]["tool_calls"]]
"""


@pytest.mark.whole
def test_an_agent_of_the_users_gets_the_tools_that_the_job_names(sums: Path) -> None:
    sums.with_name("agent.py").write_text(AGENT)
    tools = {"type": "mcp", "command": ["python", sums.name]}
    episode = check({"agent": "agent.py:run", "tools": tools}, ADDS)
    assert (episode.failure, episode.reward, episode.calls) == (None, 1.0, 2)
    assert len(episode.timelines) == 1 and episode.response == "said: It is 42."


@pytest.mark.whole
def test_servers_run_in_the_folder_of_the_job_wherever_ajet_is_started(
    sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = sums.with_name("elsewhere")
    elsewhere.mkdir()
    tools = {"type": "mcp", "command": ["python", sums.name]}
    Path("tasks.jsonl").write_text('{"query": "12 + 30", "answer": "42"}')
    Path("answers.yaml").write_text(yaml.safe_dump(ADDS))
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": {"type": "chat", "tools": tools},
        "judge": "contains",
    }
    Path("job.yaml").write_text(yaml.safe_dump({**job, "model": "starter"}))
    monkeypatch.chdir(elsewhere)
    assert run_program(["check", "../job.yaml", "--answers", "../answers.yaml", "--group-size", "1"]) == 0
    (folder,) = Path().glob("runs/*")
    assert [episode.reward for episode in load_run(folder).episodes()] == [1.0]


@pytest.mark.parametrize("agent", ["def run(task, tuner, tools): ...", "run = 7"])
def test_an_agent_that_is_no_async_function_is_refused(agent: str, sums: Path) -> None:
    sums.with_name("agent.py").write_text(agent)
    with pytest.raises(ConfigError, match="write `async def` with the parameters task, tuner, tools"):
        ChatWorkflow(agent=f"{sums.with_name('agent.py')}:run")


@pytest.mark.whole
def test_two_servers_with_a_tool_of_one_name_are_refused(sums: Path) -> None:
    server = {"type": "mcp", "command": [sys.executable, str(sums)]}
    episode = check({"tools": [server, server]}, ADDS)
    assert episode.failure == "workflow:tools" and "two MCP servers have a tool 'add'" in episode.error


@pytest.mark.whole
def test_a_server_at_a_url_gives_its_tools_too(sums: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serving = sums.with_name("serving.py")
    serving.write_text(
        SUMS.replace('Server("sums")', f'Server("sums", port={port})').replace(
            "*sys.argv[1:]", '"streamable-http"'
        )
    )
    server = subprocess.Popen([sys.executable, str(serving)], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with socket.socket() as trying:
                if trying.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        episode = check({"tools": f"http://127.0.0.1:{port}/mcp"}, ADDS)
        assert (episode.failure, episode.reward) == (None, 1.0)
    finally:
        server.terminate()
        _, said = server.communicate()
    assert "terminat" in said.lower()  # the session, by the client


@pytest.mark.whole
@pytest.mark.parametrize(
    "call, said",
    fast(
        {0},
        [
            ({"name": "add", "arguments": {"a": "many"}}, "validation error"),
            ({"name": "add", "arguments": {"a": 1, "b": 2}}, "3"),
        ],
    ),
)
def test_what_is_wrong_with_a_call_is_for_the_model_to_read(
    call: dict[str, Any], said: str, sums: Path
) -> None:
    answers = [{"turn": 0, "call": call}, {"when": said, "say": "42"}, {"say": "I did not read it."}]
    episode = check({"tools": {"type": "mcp", "command": [sys.executable, str(sums)]}}, answers)
    assert (episode.failure, episode.response) == (None, "42")


@pytest.mark.whole
def test_a_server_that_does_not_start_fails_the_episode_in_one_line(sums: Path) -> None:
    broken = sums.with_name("broken.py")
    broken.write_text("raise SystemExit('no licence')")
    for command, why in (["/nowhere/server"], "nowhere"), ([sys.executable, str(broken)], "no licence"):
        episode = check({"tools": {"type": "mcp", "command": command}}, ADDS)
        assert episode.failure == "workflow:tools" and why in episode.error and "\n" not in episode.error


@pytest.mark.whole
def test_an_agent_of_ones_own_opens_the_tools_itself(sums: Path) -> None:
    calls = [("add", '{"a": 2, "b": 2}'), ("add", "[2, 2]"), ("add", "2 + 2"), ("subtract", "{}")]

    async def agent() -> tuple[list[str], list[Any]]:
        async with McpTools(command=("python", str(sums))).opened() as tools:
            asked = [{"id": "1", "function": {"name": name, "arguments": given}} for name, given in calls]
            return tools.names, [(await tools.answer(call))["content"] for call in asked]

    names, said = asyncio.run(agent())
    assert names == ["add"] and said[0] == "4"
    assert said[1] == said[2] == "Error: the arguments are not a JSON object."
    assert said[3] == "Error: there is no tool 'subtract'."


@pytest.mark.slow
def test_after_cancelled_episodes_no_server_is_left(sums: Path) -> None:
    draw = random.Random(0)
    workflow = ChatWorkflow(tools={"command": [sys.executable, str(sums)]})  # type: ignore[arg-type]

    async def cancel_all() -> None:
        before = len(os.listdir("/proc/self/fd"))
        async with workflow.open() as live:

            async def episode() -> None:
                tuner: Any = type("Nobody", (), {"base_url": "http://127.0.0.1:1/v1", "api_key": "key"})
                doing = asyncio.ensure_future(live.execute(Task("one", "What?"), tuner))
                await asyncio.wait([doing], timeout=draw.uniform(0, 3))
                doing.cancel()
                await asyncio.gather(doing, return_exceptions=True)

            for _ in range(10):
                await asyncio.gather(*(episode() for _ in range(4)))
        assert len(os.listdir("/proc/self/fd")) <= before + 1

    asyncio.run(cancel_all())


def test_one_server_is_named_by_a_command_or_a_url() -> None:
    with pytest.raises(ValueError, match="either `command`, a list, or `url`"):
        McpTools()


@needs_library
@pytest.mark.parametrize(
    "server, call, said",
    [
        ("mcp-server-git", {"name": "git_status", "arguments": {"repo_path": "."}}, "No commits yet"),
        (
            "mcp-server-time",
            {
                "name": "convert_time",
                "arguments": {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            },
            "21:00",
        ),
    ],
)
def test_published_servers_work_unchanged(
    server: str, call: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    answers = [{"turn": 0, "call": call}, {"when": said, "say": f"It says {said}."}, {"say": "Nothing."}]
    episode = check(
        {"tools": {"type": "mcp", "command": [str(Path(PYTHON).parent / server)]}}, answers, answer=said
    )
    assert (episode.failure, episode.reward, episode.calls) == (None, 1.0, 2)


@needs_library
def test_the_starter_is_trained_for_two_steps_with_the_tools_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tasks.jsonl").write_text('{"query": "What is 2 + 3?", "answer": "5"}')
    tools = {"type": "mcp", "command": [str(Path(PYTHON).parent / "mcp-server-time")]}
    job = {
        "task": {"reader": "tasks.jsonl"},
        "workflow": {"type": "chat", "tools": tools},
        "judge": "contains",
        "model": long_starter(tmp_path),
        "rollout": {"group_size": 2, "retries": 0, "sampling": {"max_tokens": 24}},
        "train": {"steps": 2, "batch_size": 1},
    }
    Path("job.yaml").write_text(yaml.safe_dump(job))
    assert run_program(["run", "job.yaml"]) == 0
    (folder,) = Path().glob("runs/*")
    assert_trained(load_run(folder))
