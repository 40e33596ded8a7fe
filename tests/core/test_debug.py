"""The `debug` backbone: every episode told as it ends, then what a batch would have been."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet.interfaces.backbone import RunResult
from ajet.interfaces.progress import Silent
from ajet.job.config import Layers
from ajet.job.prepare import prepare
from ajet.rollout.recorder import JOURNAL, live_lines
from ajet.services import llm_client
from ajet.services.chat_models import OpenAIChatModel
from ajet.types import AjetError, ConfigError, Sampling
from ajet.utils import breakpoints

AGENT = """
import httpx2

async def run(task):
    async with httpx2.AsyncClient() as client:
        ask = {"model": "m", "messages": [{"role": "user", "content": task.query}], "max_tokens": 7}
        answer = (await client.post("http://127.0.0.1:9/v1/chat/completions", json=ask)).json()
    return answer["choices"][0]["message"]["content"]

async def slow(task):
    import asyncio
    await asyncio.sleep(0.2)
    return await run(task)

async def slow_judge(task, output):
    import asyncio
    await asyncio.sleep(0.2)
    return 1.0
"""
SCRIPT = "- {when: 2+2, say: '4'}\n- {say: 'no idea'}\n"


class Lines(Silent):
    """Keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def no_breakpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breakpoints, "_enabled", set())


class Debugging:
    """A folder with an agent and two tasks, run on the debug backbone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "agent.py").write_text(AGENT)
        (folder / "script.yaml").write_text(SCRIPT)
        tasks = [{"id": "a", "query": "2+2?", "answer": "4"}, {"id": "b", "query": "3+3?", "answer": "6"}]
        (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(t)}\n" for t in tasks))
        self.lines = Lines()

    def run(self, **values: Any) -> RunResult:
        layers = Layers()
        base: dict[str, Any] = {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "agent.py:run",
            "judge": "exact",
            "run": {"dir": str(self.folder / "runs")},
            "backbone": {"name": "debug", "debug": {"answers": {"type": "script", "path": "script.yaml"}}},
        }
        layers.add(base, "job.yaml", self.folder)
        for key, value in values.items():
            layers.set(key.replace("__", "."), value, "--set", self.folder)
        job = prepare(layers).with_progress(self.lines)
        return job.backbone.run(job)

    def told(self, start: str) -> list[str]:
        return [line for line in self.lines.said if line.startswith(start)]


@pytest.fixture
def debugging(tmp_path: Path) -> Debugging:
    return Debugging(tmp_path)


def test_each_episode_is_told_with_its_verdict_reward_calls_and_response(debugging: Debugging) -> None:
    debugging.run()
    (a0, a1), (b0, b1) = debugging.told("pass"), debugging.told("miss")
    assert [line.split()[1].split("/")[1:] for line in (a0, a1, b0, b1)] == [
        ["a", "0"],
        ["a", "1"],
        ["b", "0"],
        ["b", "1"],
    ]
    assert a0.split()[2:] == ["reward", "1", "1", "calls", "0", "tokens", "4"]
    assert b0.endswith("reward 0  1 calls  0 tokens  no idea")
    assert debugging.told("4 episodes, reward 0.500, failures: none")


def test_what_a_model_says_cannot_control_the_terminal(debugging: Debugging) -> None:
    (debugging.folder / "script.yaml").write_text('- {say: "\\e]0;title\\a\\e[2J"}\n')
    debugging.run()
    said = "\n".join(debugging.lines.said)
    assert "\x1b" not in said and "\x07" not in said and "\\x1b]0;title" in said


def test_every_episode_is_in_the_journal_of_the_run_folder(debugging: Debugging) -> None:
    result = debugging.run()
    lines = list(live_lines(result.run_dir / JOURNAL))
    assert sorted((line["task"], line["member"], line["reward"]) for line in lines) == [
        ("a", 0, 1.0),
        ("a", 1, 1.0),
        ("b", 0, 0.0),
        ("b", 1, 0.0),
    ]
    assert result.checkpoint is None and result.steps == 0


@pytest.mark.whole
def test_answers_of_a_chat_model_make_no_batch_and_it_says_why(debugging: Debugging) -> None:
    debugging.run()
    assert debugging.lines.said[-1].startswith("no batch: the answers came from a chat model")


def test_its_own_settings_say_how_many_tasks_and_members_run(debugging: Debugging) -> None:
    debugging.run(backbone__debug__tasks=1, backbone__debug__group_size=3, rollout__group_size=8)
    assert debugging.told("3 episodes")


def test_keys_without_effect_are_named_and_those_with_one_are_not(debugging: Debugging) -> None:
    unused = {
        "train__steps": 3,
        "eval__every": 2,
        "task__validation": "tasks.jsonl",
        "rollout__group_size": 8,
        "rollout__concurrency": 2,
        "run__loggers": [],
        "model": "some/model",
    }
    debugging.run(**unused, train__algorithm="grpo", rollout__timeout="9s", run__seed=3)
    (line,) = debugging.told("debug: nothing is trained")
    named = line.rpartition(": ")[2].split(", ")
    assert {key.replace("__", ".") for key in unused} - {"task.validation"} <= set(named)
    assert "task.validation.path" in named
    assert not [k for k in named if k.startswith(("train.algorithm", "rollout.timeout", "run.seed", "judge"))]


def test_without_such_keys_there_is_no_such_line(debugging: Debugging) -> None:
    debugging.run()
    assert not debugging.told("debug: nothing is trained")


def test_one_failing_episode_is_told_with_its_cause_and_the_others_go_on(debugging: Debugging) -> None:
    (debugging.folder / "script.yaml").write_text("- {when: 2+2, say: '4'}\n")
    debugging.run(backbone__debug__group_size=1)
    assert len(debugging.told("pass")) == 1
    (failed,) = debugging.told("FAIL")
    assert "engine: " in failed and "script.yaml: no rule fits turn 0 after '3+3?'" in failed
    assert debugging.told("2 episodes, reward 1.000, failures: 1 engine")


def test_if_every_episode_fails_the_run_is_an_error_that_says_why(debugging: Debugging) -> None:
    (debugging.folder / "agent.py").write_text("async def run(task):\n    raise KeyError('lost')\n")
    with pytest.raises(AjetError, match=r"all 4 episodes failed: 4 workflow:KeyError.*agent.py:2"):
        debugging.run()
    assert len(debugging.told("FAIL")) == 4


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"type": "scrip"}, "did you mean 'script'"),
        ({"type": "script"}, "backbone.debug.answers.path: is required"),
        ({"type": "openai", "base_url": "http://x"}, "backbone.debug.answers.model: is required"),
        (
            {"type": "openai", "base_url": "x", "model": "m"},
            "backbone.debug.answers.base_url: the address must begin with http:// or https://",
        ),
        ({"path": "script.yaml"}, "backbone.debug.answers: needs `type`"),
    ],
)
def test_wrong_answers_are_refused_before_anything_runs(
    debugging: Debugging, answers: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        debugging.run(backbone__debug__answers=answers)
    assert not (debugging.folder / "runs").exists()


# ------------------------------------------------------------------ deadlines and breakpoints


@pytest.mark.whole
@pytest.mark.parametrize(
    ("workflow", "judge", "key"),
    [("slow", "exact", "timeout"), ("run", "agent.py:slow_judge", "judge_timeout")],
)
def test_deadlines_are_off_while_a_breakpoint_is_enabled(
    debugging: Debugging, workflow: str, judge: str, key: str
) -> None:
    values = {"workflow": f"agent.py:{workflow}", "judge": judge, f"rollout__{key}": 0.1}
    with pytest.raises(AjetError, match="timeout"):
        debugging.run(**values)
    breakpoints.enable({"HERE"})
    debugging.run(**values)
    assert debugging.told("4 episodes")[0].endswith("failures: none")


@pytest.mark.parametrize(
    ("enabled", "tag", "stops"),
    [(set(), "A", False), ({"A"}, "A", True), ({"A"}, "B", False), ({"*"}, "B", True)],
)
def test_a_named_breakpoint_stops_only_where_its_tag_is_enabled(
    monkeypatch: pytest.MonkeyPatch, enabled: set[str], tag: str, stops: bool
) -> None:
    import ajet

    stopped: list[int] = []
    monkeypatch.setattr("sys.breakpointhook", lambda: stopped.append(1))  # an IDE's own debugger
    breakpoints.enable(enabled)
    ajet.breakpoint(tag)
    assert bool(stopped) == stops


# ------------------------------------------------------------------ any OpenAI-compatible endpoint


class Endpoint:
    """A small server on this machine that speaks chat completions."""

    def __init__(self, server: HTTPServer) -> None:
        self.url = server.url_for("/v1")
        self.requests: list[tuple[str, str | None, Any]] = []
        self.busy = 0
        """How many requests get a 429 first."""
        self.status = 200
        message = {"role": "assistant", "content": "4", "refusal": None}
        self.reply = json.dumps({"choices": [{"index": 0, "message": message}]})
        server.expect_request("/v1/chat/completions").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        self.requests.append((request.path, request.headers.get("authorization"), request.get_json()))
        self.busy -= 1
        return Response(self.reply, 429 if self.busy >= 0 else self.status)


@pytest.fixture
def endpoint(httpserver: HTTPServer) -> Endpoint:
    return Endpoint(httpserver)


def openai(url: str, **fields: Any) -> dict[str, Any]:
    return {"type": "openai", "base_url": url, "model": "m", **fields}


def test_an_endpoint_answers_with_the_key_of_the_environment(
    debugging: Debugging, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret-1")
    answers = {"type": "openai", "base_url": endpoint.url, "model": "big", "api_key_env": "MY_KEY"}
    result = debugging.run(
        backbone__debug__answers=answers, backbone__debug__group_size=1, rollout__sampling__temperature=0.7
    )
    assert len(debugging.told("pass")) == len(debugging.told("miss")) == 1
    assert [(path, key) for path, key, _ in endpoint.requests] == [
        ("/v1/chat/completions", "Bearer secret-1")
    ] * 2
    assert sorted(body["messages"][0]["content"] for *_, body in endpoint.requests) == ["2+2?", "3+3?"]
    for *_, body in endpoint.requests:
        assert (body["model"], body["temperature"], body["max_tokens"]) == ("big", 0.7, 7)
    written = "".join(p.read_text() for p in result.run_dir.rglob("*") if p.is_file())
    assert "MY_KEY" in written and "secret-1" not in written, "a key is never written down"


def test_an_endpoint_gets_the_sampling_that_was_asked_for_and_nothing_else(endpoint: Endpoint) -> None:
    asked = {"seed": 5, "top_p": 0.9, "top_k": 20, "min_p": 0.1}

    async def ask() -> None:
        async with OpenAIChatModel(base_url=endpoint.url, model="m").open() as model:
            await model.complete([{"role": "user", "content": "2+2?"}], [], Sampling(**asked))
            await model.complete([{"role": "user", "content": "2+2?"}], [], Sampling())

    asyncio.run(ask())
    (*_, full), (*_, plain) = endpoint.requests
    assert full.items() >= asked.items() and not plain.keys() & asked.keys()


@pytest.mark.parametrize(
    ("status", "reply", "said"),
    [
        (503, "overloaded", "HTTP 503: overloaded"),
        (200, "<html>", "not a chat completion: <html>"),
        (200, '{"error": "no model"}', 'not a chat completion: {"error": "no model"}'),
    ],
)
def test_an_endpoints_own_error_is_the_cause_that_is_told(
    debugging: Debugging, endpoint: Endpoint, status: int, reply: str, said: str
) -> None:
    endpoint.status, endpoint.reply = status, reply
    with pytest.raises(AjetError) as caught:
        debugging.run(backbone__debug__answers=openai(endpoint.url, retries=0))
    assert "4 engine. First: " in str(caught.value)
    assert f"{endpoint.url}/chat/completions: {said}" in str(caught.value)


def test_an_endpoint_that_is_not_there_is_named_with_a_question(debugging: Debugging) -> None:
    answers = openai("http://127.0.0.1:9/v1", retries=0)
    with pytest.raises(
        AjetError, match=r"127.0.0.1:9/v1/chat/completions: ConnectError.*Is the server running"
    ):
        debugging.run(backbone__debug__answers=answers)


KEEPS_STATUS = """
import httpx2, pathlib

def run(task):
    ask = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
    answer = httpx2.post("http://127.0.0.1:9/v1/chat/completions", json=ask)
    pathlib.Path(__file__).with_name("status").write_text(str(answer.status_code))
"""
ONE = {"backbone__debug__tasks": 1, "backbone__debug__group_size": 1}


def test_an_endpoint_that_is_busy_is_asked_again(
    debugging: Debugging, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm_client, "FIRST_PAUSE", 0.01)
    endpoint.busy = 2
    debugging.run(backbone__debug__answers=openai(endpoint.url), **ONE)
    assert debugging.told("1 episodes, ")[0].endswith("failures: none") and len(endpoint.requests) == 3


@pytest.mark.whole
def test_the_agents_client_gets_the_endpoints_status(debugging: Debugging, endpoint: Endpoint) -> None:
    (debugging.folder / "agent.py").write_text(KEEPS_STATUS)
    endpoint.status = 429
    with pytest.raises(AjetError, match="HTTP 429"):
        debugging.run(backbone__debug__answers=openai(endpoint.url, retries=0), **ONE)
    assert (debugging.folder / "status").read_text() == "429"
