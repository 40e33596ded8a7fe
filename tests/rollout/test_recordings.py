"""Recordings: an episode runs again without a model, and differs only where the agent or the judge has changed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet import AjetError, ConfigError
from ajet.capture.replies import Form, NotRecorded, Replies
from ajet.reports.folder import find_run, read_run
from ajet.reports.recording import record
from ajet.rollout.recording import Recording
from ajet.testing.recordings import RecordingFile, ReplayedEpisode
from tests.program import Program

openai = pytest.importorskip("openai")

AGENT = '''
import asyncio, itertools, os, uuid
import httpx2, openai
import ajet

URL = "http://127.0.0.1:9/v1"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

def client():
    return openai.AsyncOpenAI(base_url=URL, api_key="sk-agents-secret", max_retries=0)

async def tools(task):
    """A tool conversation."""
    messages = [{"role": "user", "content": task.query}]
    while True:
        asked = await client().chat.completions.create(model="m", messages=messages, tools=[TOOL], temperature=0.5)
        said = asked.choices[0].message
        if not said.tool_calls:
            return said.content
        messages += [said, {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": str(task.metadata.get("tool"))}]

async def streamed(task):
    stream = await client().chat.completions.create(
        model="m", messages=[{"role": "user", "content": task.query}], stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

async def responses(task):
    one = await client().responses.create(model="m", input=task.query)
    two = await client().responses.create(model="m", input="sure?", previous_response_id=one.id)
    return two.output_text

async def completions(task):
    done = await client().completions.create(model="m", prompt=task.query, logprobs=1)
    return [done.choices[0].text, done.choices[0].logprobs.token_logprobs, done.usage.total_tokens]

async def usage(task):
    done = await client().chat.completions.create(
        model="m", messages=[{"role": "user", "content": task.query}], logprobs=True, max_tokens=2)
    choice = done.choices[0]
    return [choice.finish_reason, done.usage.total_tokens, [round(x.logprob, 4) for x in choice.logprobs.content]]

def plain(task):
    """Anthropic's API, over plain HTTP."""
    ask = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": task.query}]}
    answer = httpx2.post("http://127.0.0.1:9/v1/messages", json=ask, headers={"x-api-key": "sk-agents-secret"})
    return answer.json()["content"][0]["text"]

async def crowd(task):
    """Five agents at once, two of which ask the same twice; the order of their requests differs from run to run."""
    async def ask(name, text, wait):
        await asyncio.sleep(wait)
        with ajet.label(agent=name):
            said = await client().chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
        return f"{name}: {said.choices[0].message.content}"
    waits = [0.05, 0, 0.02, 0.01, 0.03]
    if os.environ.get("OTHER_ORDER"):
        waits.reverse()
    asked = [ask(name, text, wait) for (name, text), wait in zip(
        [("a", "one"), ("b", "one"), ("c", "two"), ("d", "three"), ("e", f"four {uuid.uuid4()}")], waits)]
    return await asyncio.gather(*asked)

async def twice(task):
    create = client().chat.completions.create
    ask = [{"role": "user", "content": "a number?"}]
    return [(await create(model="m", messages=ask)).choices[0].message.content for _ in range(2)]

async def failing(task):
    await tools(task)
    raise KeyError("lost")

def judge(task, output):
    return output.response == task.metadata["answer"]

def always(task, output):
    return 1.0
'''
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


class Project:
    """A folder with an agent and a job whose engine is scripted; `record` runs it, `replay` replays it."""

    def __init__(self, folder: Path, program: Program) -> None:
        self.folder, self.program, self.file = folder, program, folder / "recorded.json"
        self.write("agent.py", AGENT)
        self.write(
            "script.yaml",
            "- {turn: 0, when: sum, call: {name: add, arguments: {a: 1}}}\n- {say: 'It is 42.'}\n",
        )
        self.task(id="a", query="sum 2+2?", answer="It is 42.", tool="42")

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")
        # Python compares whole seconds, and these files are rewritten faster than that.
        shutil.rmtree(self.folder / "__pycache__", ignore_errors=True)

    def task(self, *more: Mapping[str, Any], **one: Any) -> None:
        lines = [json.dumps(task) for task in ([one] if one else more)]
        self.write("tasks.jsonl", "\n".join(lines) + "\n")

    def edit(self, old: str, new: str, name: str = "agent.py") -> None:
        """Change the agent, as its author does between two runs."""
        text = (self.folder / name).read_text(encoding="utf-8")
        assert old in text
        self.write(name, text.replace(old, new))
        for module in [name for name in sys.modules if name.startswith("agent")]:
            if str(getattr(sys.modules[module], "__file__", "")).startswith(str(self.folder)):
                del sys.modules[module]

    def record(
        self,
        workflow: str = "tools",
        judge: Any = "agent.py:judge",
        *,
        group_size: int = 1,
        workflow_spec: str | None = None,
    ) -> str:
        sets = {
            "workflow": workflow_spec or f"agent.py:{workflow}",
            "judge": judge,
            "backbone.debug.group_size": group_size,
            "backbone.debug.answers": {"type": "script", "path": "script.yaml"},
        }
        flags = [word for key, value in sets.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        done = self.program(
            *("run", "--tasks", "tasks.jsonl", "--backbone", "debug", "--record", str(self.file), *flags)
        )
        assert "recorded: " in done.out, done.err
        return done.out + done.err

    def replay(
        self, workflow: str = "tools", judge: Any = "agent.py:judge", **options: Any
    ) -> ReplayedEpisode:
        given = {name: options.pop(name) for name in ("ignore",) if name in options}
        return RecordingFile(self.file, **given).replay(f"agent.py:{workflow}", judge=judge, **options)


@pytest.fixture
def project(tmp_path: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield Project(tmp_path, ajet)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


# ------------------------------------------------------------------ the same again


@pytest.mark.whole
def test_an_unchanged_agent_gives_the_recorded_episode_without_a_model(project: Project) -> None:
    project.record()
    replayed = project.replay()
    assert (replayed.reward, replayed.is_success, replayed.response) == (1.0, True, "It is 42.")
    assert not replayed.differences and replayed.failure is None
    assert [m["role"] for m in replayed.messages[-1]] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("workflow", ["streamed", "responses", "plain", "twice"])
def test_every_api_is_replayed_complete_and_streamed(project: Project, workflow: str) -> None:
    project.record(workflow, "agent.py:always")
    replayed = project.replay(workflow, "agent.py:always")
    assert not replayed.differences and replayed.response == replayed.recorded.response


def test_the_order_of_concurrent_requests_does_not_matter_nor_do_uuids(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write(
        "script.yaml",
        "\n".join(f"- {{when: {word}, say: 'to {word}'}}" for word in ("one", "two", "three", "four")),
    )
    project.record("crowd", "agent.py:always")
    (recorded,) = Recording.read(project.file).episodes
    for call in recorded.calls:  # agents a and b asked the same, and were told different things
        call.reply.message["content"] += f" by {call.agent}"
    recorded.response[:] = [f"{line} by {line[0]}" for line in recorded.response]
    Recording(episodes=[recorded]).write(project.file)
    monkeypatch.setenv("OTHER_ORDER", "1")
    replayed = project.replay("crowd", "agent.py:always")
    assert not replayed.differences
    assert replayed.response[:2] == ["a: to one by a", "b: to one by b"]


@pytest.mark.whole
def test_a_request_that_is_repeated_gets_its_replies_in_their_order(project: Project) -> None:
    project.record("twice", "agent.py:always")
    recorded = Recording.read(project.file)
    for number, call in enumerate(recorded.episodes[0].calls):
        call.reply.message["content"] = str(number)
    recorded.write(project.file)
    assert project.replay("twice", "agent.py:always").response == ["0", "1"]
    project.edit("range(2)", "range(3)")
    replayed = project.replay("twice", "agent.py:always")
    assert "it is sent 3 times, and was recorded 2 times" in replayed.differences[0]


def test_an_episode_that_failed_fails_in_the_same_way_until_the_agent_is_fixed(project: Project) -> None:
    printed = project.record("failing")
    assert "all 1 episodes failed" in printed
    same = project.replay("failing")
    assert same.failure == "workflow:KeyError" and not same.differences
    project.edit('    await tools(task)\n    raise KeyError("lost")', "    return await tools(task)")
    fixed = project.replay("failing")
    assert fixed.failure is None and fixed.reward == 1
    assert fixed.differences[0] == "failure none; recorded workflow:KeyError"


def test_dates_may_differ_where_the_test_says_so(project: Project) -> None:
    project.edit('"content": task.query}', '"content": f"2026-01-01 {task.query}"}')
    project.record()
    project.edit("2026-01-01", "2026-01-02")
    assert project.replay().failure == "not_recorded"
    assert not project.replay(ignore=[r"\d{4}-\d\d-\d\d"]).differences
    with pytest.raises(ConfigError, match=r"ignore: '\(' is not a regular expression"):
        project.replay(ignore=["("])


@pytest.mark.whole
def test_an_error_of_the_model_is_replayed_too(project: Project) -> None:
    project.write(
        "script.yaml",
        "- {turn: 0, when: sum, call: {name: add, arguments: {a: 1}}}\n- {when: nothing, say: x}\n",
    )
    project.record()
    (recorded,) = Recording.read(project.file).episodes
    assert recorded.failure == "engine" and recorded.calls[-1].error
    replayed = project.replay()
    assert (
        replayed.failure == "engine" and "no rule fits turn 1" in replayed.error and not replayed.differences
    )
    project.edit(
        "        asked = await",
        "        if len(messages) > 1:\n            return 'It is 42.'\n        asked = await",
    )
    fixed = project.replay()
    assert fixed.reward == 1
    assert fixed.differences[0].startswith("1 recorded call was not made")


# ------------------------------------------------------------------ what has changed


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ('"content": task.query}', '"content": task.query + " Now!"}', 'message 1 (user) is now "sum 2+2? Now!", and was "sum 2+2?"'),
        ('str(task.metadata.get("tool"))', '"43"', 'message 3 (tool of call 1) is now "43", and was "42"'),
        ('"name": "add"', '"name": "sum"', "the list of tools is now"),
        ("return said.content", "messages += [said, messages[0]]\n            continue",
         'it goes on with message 4 (assistant), "It is 42.", where the recorded one ends'),
    ],
)  # fmt: skip
def test_a_new_request_is_an_error_that_names_the_first_difference(
    project: Project, old: str, new: str, difference: str
) -> None:
    project.record()
    project.edit(old, new)
    replayed = project.replay()
    assert replayed.failure == "not_recorded" and replayed.reward == 0
    assert replayed.error.endswith("Undo the change, or record again.") and "\n" not in replayed.error
    (line,) = replayed.differences
    assert difference in line and line in repr(replayed)


def test_calls_that_are_no_longer_made_are_named(project: Project) -> None:
    project.record()
    project.edit(
        "        if not said.tool_calls:\n            return said.content\n",
        "        return said.content or 'nothing'\n",
    )
    assert (
        project.replay()
        .differences[0]
        .startswith("1 recorded call was not made: agent 'agent', message 3 (tool of call 1) \"42\"")
    )


@pytest.mark.whole
def test_another_verdict_is_a_difference(project: Project) -> None:
    project.record()
    project.edit("output.response == task", "output.response != task")
    replayed = project.replay()
    assert replayed.differences == ["reward 0, recorded 1", "success False, recorded True"]


def test_an_error_that_the_agent_handles_is_a_difference_nevertheless(project: Project) -> None:
    project.record()
    project.edit(
        "async def tools(task):",
        "async def tools(task):\n    new = [{'role': 'user', 'content': 'new'}]\n"
        "    try:\n        await client().chat.completions.create(model='m', messages=new)\n"
        "    except openai.BadRequestError:\n        pass",
    )
    replayed = project.replay()
    assert replayed.reward == 1 and "is not in the recording" in replayed.differences[0]


# ------------------------------------------------------------------ judges


JUDGES_MODEL = {
    "choices": [{"message": {"role": "assistant", "content": "5"}}],
    "usage": {"prompt_tokens": 3},
}
MODEL_JUDGE = '''
import openai
def judge(task, output):
    """Asks through the SDK, and marks its data with a random number."""
    import secrets
    mark = secrets.token_hex(16)
    client = openai.OpenAI(base_url="URL/v1", api_key="sk-judges-secret", max_retries=0)
    ask = [{"role": "user", "content": f"{mark}\\n{output.response}\\n{mark}"}]
    stars = client.chat.completions.create(model="judge", messages=ask).choices[0].message.content
    return int(stars) / 5
'''


STREAMING = """
import openai
async def judge(task, output):
    client = openai.AsyncOpenAI(base_url="URL/v1", api_key="sk-judges-secret", max_retries=0)
    ask = [{"role": "user", "content": output.response}]
    stream = await client.chat.completions.create(model="judge", messages=ask, stream=True)
    return float("".join([chunk.choices[0].delta.content async for chunk in stream]))
"""


def test_a_judges_stream_is_replayed_too(project: Project, httpserver: HTTPServer) -> None:
    pieces = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("0", ".5")]
    events = "".join(f"data: {json.dumps(piece)}\n\n" for piece in pieces) + "data: [DONE]\n\n"
    answer = httpserver.expect_request("/v1/chat/completions")
    answer.respond_with_data(events, content_type="text/event-stream")
    project.write("agent_judge.py", STREAMING.replace("URL/v1", httpserver.url_for("/v1")))
    project.record(judge="agent_judge.py:judge")
    replayed = project.replay(judge="agent_judge.py:judge")
    assert replayed.reward == 0.5 and not replayed.differences and len(httpserver.log) == 1


@pytest.mark.whole
def test_a_judges_calls_to_a_model_are_replayed_without_its_endpoint(
    project: Project, httpserver: HTTPServer
) -> None:
    httpserver.expect_request("/v1/chat/completions").respond_with_json(JUDGES_MODEL)
    project.write("agent_judge.py", MODEL_JUDGE.replace("URL/v1", httpserver.url_for("/v1")))
    project.record(judge="agent_judge.py:judge")
    assert len(httpserver.log) == 1
    replayed = project.replay(judge="agent_judge.py:judge")
    assert replayed.reward == 1 and not replayed.differences and len(httpserver.log) == 1
    (call,) = replayed.recorded.judge_calls
    assert call.url == httpserver.url_for("/v1/chat/completions") and call.response == JUDGES_MODEL
    project.edit('f"{mark}\\n{out', 'f"{mark}: {out', name="agent_judge.py")
    replayed = project.replay(judge="agent_judge.py:judge")
    assert replayed.failure == "judge:BadRequestError"
    assert replayed.differences[0].startswith(
        "a request of the judge is not in the recording: message 1 is now "
    )
    assert len(httpserver.log) == 1


@pytest.fixture
def asked(httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The endpoint of a plugin's judge, whose model gives every response the score that it is called."""

    def answer(request: Request) -> Response:
        assert request.headers["authorization"] == "Bearer sk-judges-secret"
        schema = request.get_json()["response_format"]["json_schema"]["schema"]
        said = {name: 7 for name in schema["properties"]} | {"reason": "a reason"}
        return Response(json.dumps({"choices": [{"message": {"content": json.dumps(said)}}]}))

    pytest.importorskip("ajet_judges")
    httpserver.expect_request("/v1/chat/completions").respond_with_handler(answer)
    monkeypatch.setenv("JUDGE_KEY", "sk-judges-secret")
    return {"base_url": httpserver.url_for("/v1"), "model": "m", "api_key_env": "JUDGE_KEY", "cache": "cache"}


def test_a_plugins_judge_needs_neither_its_endpoint_nor_its_key_also_where_its_cache_answered(
    project: Project, asked: dict[str, Any], httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = {"type": "llm", "endpoint": asked}
    project.record(judge=judge)
    project.record(judge=judge)
    assert len(httpserver.log) == 1, "the second run's verdict is from the cache"
    monkeypatch.delenv("JUDGE_KEY")
    del asked["cache"]
    replayed = project.replay(judge=judge)
    assert replayed.reward == 0.7 and not replayed.differences and len(httpserver.log) == 1


def test_a_judge_of_groups_gets_the_whole_group(
    project: Project, asked: dict[str, Any], httpserver: HTTPServer
) -> None:
    del asked["cache"]
    judge = {"type": "listwise", "endpoint": asked}
    project.record(judge=judge, group_size=2)
    first, second = RecordingFile(project.file).replay_all("agent.py:tools", judge=judge)
    assert first.reward == second.reward == 0.7 and not [*first.differences, *second.differences]
    assert len(httpserver.log) == 1


# ------------------------------------------------------------------ what is recorded


@pytest.mark.whole
@pytest.mark.parametrize("workflow", ["usage", "completions"])
def test_tokens_logprobs_and_usage_are_recorded_and_given_to_the_agent_again(
    project: Project, workflow: str
) -> None:
    pytest.importorskip("ajet_local")
    checked = project.program(
        *(
            "check",
            "--workflow",
            f"agent.py:{workflow}",
            "--judge",
            "agent.py:always",
            "--tasks",
            "tasks.jsonl",
        ),
        *("--model", "starter", "--answers", "script.yaml", "--first", "1", "--group-size", "1"),
    )
    assert checked.code == 0, checked.err
    shown = project.program("show", "runs", "1.0", "--record", str(project.file))
    assert shown.code == 0 and "with 1 episode" in shown.out, shown.err
    replayed = project.replay(workflow, "agent.py:always")
    assert not replayed.differences and replayed.response == replayed.recorded.response
    (call,) = replayed.recorded.calls
    assert call.reply and call.reply.tokens and call.reply.tokens.texts
    assert (
        len(call.reply.tokens.ids)
        == len(call.reply.tokens.logprobs)
        == call.reply.usage.completion_tokens
        > 1
    )
    assert call.request.prompt == ("sum 2+2?" if workflow == "completions" else None)


def test_the_file_is_readable_json_without_keys_or_headers(project: Project) -> None:
    project.record()
    text = project.file.read_text(encoding="utf-8")
    data = json.loads(text)
    assert data["recording"] == 1 and list(data) == ["recording", "ajet", "run", "episodes"]
    (episode,) = data["episodes"]
    assert episode["task"] == {
        "id": "a",
        "query": "sum 2+2?",
        "metadata": {"answer": "It is 42.", "tool": "42"},
    }
    request = episode["calls"][0]["request"]
    assert request["messages"] == [{"role": "user", "content": "sum 2+2?"}]
    assert request["tools"][0]["function"]["name"] == "add" and request["sampling"] == {"temperature": 0.5}
    assert episode["calls"][0]["reply"]["message"]["tool_calls"][0]["function"]["name"] == "add"
    assert episode["verdict"] == {"reward": 1.0, "is_success": True} and episode["response"] == "It is 42."
    assert "secret" not in text and max(map(len, text.splitlines())) < 200
    assert Recording.read(project.file).text() == text


def test_one_episode_of_a_finished_run_is_recorded_by_its_id(project: Project) -> None:
    project.task({"id": "a", "query": "2+2?", "answer": "It is 42."}, {"id": "b", "query": "3+3?"})
    project.record(judge="agent.py:always")
    assert len(Recording.read(project.file).episodes) == 2
    run = read_run(find_run(project.folder / "runs"))
    one = record(run.dir, [run.line(run.find("/b/"))])
    assert [episode.task.query for episode in one.episodes] == ["3+3?"]
    assert one.text() == Recording.model_validate_json(one.text()).text()


def test_tasks_that_json_cannot_hold_are_an_error_that_says_so(project: Project) -> None:
    project.record()
    run_dir = find_run(project.folder / "runs")
    journal = run_dir / "episodes.jsonl"
    line = json.loads(journal.read_text())
    del line["given"]
    journal.write_text(json.dumps(line) + "\n")
    with pytest.raises(AjetError, match="the journal has only the id of the task"):
        record(run_dir, [line])


# ------------------------------------------------------------------ other programs and frameworks


PROGRAM = """
import json, os, sys, urllib.request
task = json.load(sys.stdin)
ask = {"model": "m", "messages": [{"role": "user", "content": task["query"]}]}
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
request = urllib.request.Request(url, json.dumps(ask).encode(), headers)
said = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.dumps({"response": said, "reward": 1.0}))
"""


@pytest.mark.whole
def test_a_program_in_any_language_is_replayed_through_the_gateway(project: Project) -> None:
    project.write("program.py", PROGRAM)
    project.task(id="b", query="2+2?")
    command = f"cmd:{sys.executable} program.py"
    project.record(workflow_spec=command, judge=None)
    replayed = RecordingFile(project.file).replay(command)
    assert replayed.response == "It is 42." and not replayed.differences


GRAPH = """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

@tool
def add(a: int) -> str:
    '''Add.'''
    return str(a + 41)

model = ChatOpenAI(model="m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
graph = create_agent(model, [add], system_prompt="You add.")
"""


@pytest.mark.whole
def test_a_graph_of_langgraph_with_tools_is_replayed(project: Project) -> None:
    pytest.importorskip("langchain.agents")
    pytest.importorskip("ajet_langgraph")
    project.write("agent_graph.py", GRAPH)
    project.record(workflow_spec="agent_graph.py:graph", judge="agent.py:always")
    (recorded,) = Recording.read(project.file).episodes
    assert [m["role"] for m in recorded.calls[-1].request.messages] == ["system", "user", "assistant", "tool"]
    replayed = RecordingFile(project.file).replay("agent_graph.py:graph", judge="agent.py:always")
    assert not replayed.differences, replayed
    project.edit("a + 41", "a + 40", name="agent_graph.py")
    replayed = RecordingFile(project.file).replay("agent_graph.py:graph", judge="agent.py:always")
    assert (
        "message 4 (tool" in replayed.differences[0]
        and 'is now "41", and was "42"' in replayed.differences[0]
    )


# ------------------------------------------------------------------ the command, and files of others


@pytest.mark.whole
def test_the_command_lists_what_differs_and_its_exit_code_says_so(project: Project) -> None:
    project.task({"id": "a", "query": "sum 2+2?"}, {"id": "b", "query": "sum 3+3?"})
    project.record(judge="agent.py:always")
    words = (
        "run",
        "--replay",
        str(project.file),
        "--workflow",
        "agent.py:tools",
        "--judge",
        "agent.py:always",
    )
    same = project.program(*words)
    assert same.code == 0, same.err
    assert same.out.endswith(f"2 episodes replayed from {project.file}, 0 different\n")
    project.edit("task.query}", "task.query.replace('3+3', '3+4')}")
    other = project.program(*words)
    assert other.code == 1
    assert re.search(r"^differs  1\.\d/b/0  failed: not_recorded", other.out, re.MULTILINE), other.out
    assert 'message 1 (user) is now "sum 3+4?", and was "sum 3+3?"' in other.out
    assert other.out.endswith(f"2 episodes replayed from {project.file}, 1 different\n")


def test_control_characters_of_models_and_tasks_are_printed_as_escapes(project: Project) -> None:
    project.task(id="a", query="\x1b[2J\u202e")
    project.record(judge="agent.py:always")
    project.edit("task.query}", "task.query + '\\x9b!'}")
    done = project.program("run", "--replay", str(project.file), "--workflow", "agent.py:tools")
    assert done.code == 1
    assert r'"\u001b[2J\u202e\x9b!", and was "\u001b[2J\u202e"' in done.out, done.out


@pytest.mark.whole
def test_a_job_file_gives_the_rest_and_flags_without_effect_are_errors(project: Project) -> None:
    project.record()
    project.write(
        "job.yaml", "workflow: agent.py:tools\njudge: agent.py:judge\ntask: {reader: nothing.jsonl}\n"
    )
    assert project.program("run", "job.yaml", "--replay", str(project.file)).code == 0
    assert not RecordingFile(project.file).replay(job="job.yaml").differences
    for flags in (
        ("--steps", "3"),
        ("--model", "m"),
        ("--record", "x.json"),
        ("--resume", "runs/x"),
        ("--dry-run",),
    ):
        done = project.program("run", "job.yaml", "--replay", str(project.file), *flags)
        assert done.code == 2 and done.err.startswith(f"error: {flags[0]} has no effect with --replay"), (
            done.err
        )


ONE = {"id": "a", "group": "a", "task": {"id": "a", "query": "q"}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "q"}]}
SAID: dict[str, Any] = {"message": {"role": "assistant", "content": "yes"}}


def file(*calls: Any, **fields: Any) -> str:
    return json.dumps({"recording": 1, "episodes": [{**ONE, "calls": calls}], **fields})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a recording"),
        (file(recording=99, ajet="9.9"), "a recording of version '99', written by ajet 9.9; this ajet reads version 1"),
        ('{"recording": 1}', "episodes: field required"),
        (file(episodes=[]), "the recording has no episodes"),
        (file(episodes=[ONE, ONE]), "2 episodes have the id 'a'"),
        (file({}), "episodes.0.calls.0.request: field required"),
        (file({"request": ASKED}), "episodes.0.calls.0: value error, needs either a reply or an error"),
        (file({"request": {"messages": [{"role": "boss"}]}, "reply": SAID}), "calls[0]: a request is not valid: messages[0].role"),
        (file({"request": ASKED, "reply": {"message": {}}}), "calls[0]: messages[1].role is None"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_a_recording_is_one_line(project: Project, text: str, fault: str) -> None:
    project.file.write_text(text)
    done = project.program("run", "--replay", str(project.file), "--workflow", "agent.py:tools")
    assert done.code == 2 and fault in done.err and done.err.count("\n") == 1 and len(done.err) < 500, (
        done.err
    )
    assert project.program("run", "--replay", str(project.folder), "--workflow", "agent.py:tools").code == 2


def test_the_file_to_record_is_checked_before_the_run(project: Project) -> None:
    done = project.program(
        "run", "--record", str(project.folder), "--workflow", "agent.py:tools", "--tasks", "tasks.jsonl"
    )
    assert done.code == 2 and "is a directory" in done.err
    assert not (project.folder / "runs").exists()


# ------------------------------------------------------------------ the fixture


def test_the_fixture_finds_the_file_beside_the_test(recording: Callable[..., RecordingFile]) -> None:
    assert recording("test_recordings.json").file == Path(__file__).parent / "test_recordings.json"


async def replay_in_a_loop(project: Project) -> ReplayedEpisode:
    return project.replay()


def test_it_replays_in_a_test_that_runs_an_event_loop_too(project: Project) -> None:
    project.record()
    assert asyncio.run(replay_in_a_loop(project)).reward == 1


# ------------------------------------------------------------------ finding replies


def replies(*chats: list[tuple[str, str]]) -> Replies[int]:
    return Replies([("a", request(*chat), number) for number, chat in enumerate(chats)])


def request(*chat: tuple[str, str]) -> Any:
    return Form().chat([{"role": role, "content": content} for role, content in chat], [])


def test_ids_count_by_where_they_occur_again() -> None:
    one, two = "0123456789abcdef" * 2, "fedcba9876543210" * 2
    assert request(("user", f"{one} {two} {one}")) == request(("user", f"{two} {one} {two}"))
    assert request(("user", f"{one} {two} {one}")) != request(("user", f"{one} {two} {two}"))


def test_an_answer_that_comes_back_in_another_form_is_the_same() -> None:
    def chat(call_id: str, arguments: str, **more: Any) -> Any:
        function = {"name": "add", "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        said = {"role": "assistant", "content": None, "tool_calls": [call], **more}
        return Form().chat([said, {"role": "tool", "tool_call_id": call_id, "content": "3"}], [])

    recorded = chat("one", '{"a": 1.0}', reasoning_content="I add.", name="solver")
    assert chat("two", '{"a":1}') == recorded != chat("two", '{"a":2}')


def test_the_difference_is_to_the_recorded_request_that_shares_most_messages() -> None:
    found = replies(
        [("system", "be kind"), ("user", "one")], [("system", "be brief"), ("user", "one " * 40 + "two")]
    )
    with pytest.raises(
        NotRecorded, match=r'message 2 \(user\) is now "…one one one one one three", and was "…one'
    ):
        found.take("a", request(("system", "be brief"), ("user", "one " * 40 + "three")))
    with pytest.raises(NotRecorded, match=r'the recorded one goes on with message 2 \(user\), "one"'):
        found.take("a", request(("system", "be kind")))
    with pytest.raises(NotRecorded, match="the recording has none"):
        replies().take("a", request(("user", "x")))
