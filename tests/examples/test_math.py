"""examples/math: an agent that knows nothing of us, and tasks whose split nobody can get wrong."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet_judges.numbers import final_number
from ajet_local.starter import sums
from tests.patience import PATIENCE

FOLDER = Path(__file__).parents[2] / "examples" / "math"


def load(name: str) -> ModuleType:
    """A fresh module from a file of the example."""
    spec = importlib.util.spec_from_file_location(f"example_math_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------ the agent


class Endpoint:
    """An OpenAI-compatible server on a socket that gives the scripted messages, the last one forever."""

    def __init__(self, server: HTTPServer, script: Sequence[dict[str, Any]]) -> None:
        self.script = script
        self.url = server.url_for("/v1")
        self.requests: list[dict[str, Any]] = []
        server.expect_request("/v1/chat/completions").respond_with_handler(self.answer)

    def answer(self, request: Request) -> Response:
        self.requests.append(request.get_json())
        message = self.script[min(len(self.requests), len(self.script)) - 1]
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        said = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return Response(json.dumps(said), content_type="application/json")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, httpserver: HTTPServer) -> Any:
    """Start an endpoint with a script, as what the environment names; returns (agent module, endpoint)."""

    def start(*script: dict[str, Any]) -> tuple[ModuleType, Endpoint]:
        endpoint = Endpoint(httpserver, script)
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("NO_PROXY", httpserver.host)
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        return load("agent"), endpoint

    return start


def calls(*expressions: str, name: str = "calculator") -> dict[str, Any]:
    """An assistant message that calls the tool once for each expression."""
    return {
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{i}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps({"expression": expression})},
            }
            for i, expression in enumerate(expressions)
        ],
    }


def ask(agent: ModuleType, query: str = "2 + 3 =") -> str:
    answer: str = asyncio.run(agent.run(SimpleNamespace(query=query)))
    return answer


def test_the_agent_answers_through_the_calculator(serve: Any) -> None:
    agent, endpoint = serve(calls("2 + 3"), {"content": "5"})
    assert ask(agent) == "5"
    first, second = endpoint.requests
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert first["messages"][1]["content"] == "2 + 3 ="
    assert second["messages"][:2] == first["messages"]
    assert second["messages"][3] == {"role": "tool", "tool_call_id": "call_0", "content": "5"}


def test_several_calls_in_one_message_are_all_answered(serve: Any) -> None:
    agent, endpoint = serve(calls("1 + 1", "2 * 3"), {"content": "done"})
    ask(agent)
    results = [
        (m["tool_call_id"], m["content"]) for m in endpoint.requests[1]["messages"] if m["role"] == "tool"
    ]
    assert results == [("call_0", "2"), ("call_1", "6")]


def test_an_agent_that_never_stops_calling_ends_after_four_turns(serve: Any) -> None:
    agent, endpoint = serve(calls("1 + 1"))
    assert ask(agent) == ""
    assert len(endpoint.requests) == 4


def test_an_answer_without_tools_is_taken(serve: Any) -> None:
    agent, endpoint = serve({"content": "5"})
    assert ask(agent) == "5" and len(endpoint.requests) == 1


def test_faults_of_the_model_are_told_to_the_model(serve: Any) -> None:
    broken = calls("1 + 1")
    broken["tool_calls"][0]["function"]["arguments"] = '{"expression": '
    agent, endpoint = serve(calls("1 +"), calls("1 + 1", name="search"), broken, {"content": "sorry"})
    assert ask(agent) == "sorry"
    told = [m["content"] for m in endpoint.requests[-1]["messages"] if m["role"] == "tool"]
    assert len(told) == 3 and all(text.startswith("error: ") for text in told)


@pytest.mark.whole
def test_it_runs_as_a_program(serve: Any) -> None:
    _, endpoint = serve(calls("2 + 3"), {"content": "5"})
    command = [sys.executable, str(FOLDER / "agent.py"), "2 + 3 ="]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("5\n", 0)
    assert len(endpoint.requests) == 2


def test_no_line_of_the_agent_knows_us() -> None:
    assert "ajet" not in (FOLDER / "agent.py").read_text().lower()


@pytest.mark.parametrize(
    ("expression", "value"), [("15 - 43 - 75", -103), ("2+3*4", 14), ("-(2 + 3)", -5), ("+7", 7), (" 1 ", 1)]
)
def test_the_calculator_knows_whole_numbers(expression: str, value: int) -> None:
    assert load("agent").calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "1 +",
        "1 / 2",
        "2 ** 99",
        "1.5",
        "True",
        "x",
        "__import__('os')",
        "(" * 150,
        "1+" * 150,
        "'a' * 9",
        "1\n2",
    ],
)
def test_the_calculator_refuses_everything_else(expression: str) -> None:
    with pytest.raises(ValueError):
        load("agent").calculate(expression)


# ------------------------------------------------------------------ its twin in the model's transcripts


def test_agent_and_model_speak_of_the_same_prompt_and_tool() -> None:
    agent = load("agent")
    assert agent.SYSTEM == sums.SYSTEM
    assert agent.CALCULATOR == sums.TOOL


def test_tasks_are_worded_and_split_as_in_the_models_transcripts() -> None:
    make_tasks = load("make_tasks")
    train, validation = make_tasks.make_tasks(seed=0, train=40, validation=40)
    for record in train + validation:
        expression = record["query"].partition(": ")[2].removesuffix(" =")
        assert record["query"] == sums.QUESTION.format(expression=expression)
        assert record["answer"] == str(sums.evaluate(expression))
        assert make_tasks.held_out(expression) == sums.held_out(expression)


# ------------------------------------------------------------------ the tasks


def records(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    out = tmp_path_factory.mktemp("tasks")
    command = [sys.executable, str(FOLDER / "make_tasks.py"), "--seed", "0", "--train", "300"]
    command += ["--validation", "256", "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    return out / "train.jsonl", out / "validation.jsonl"


def test_the_files_hold_as_many_tasks_as_asked(tasks: tuple[Path, Path]) -> None:
    assert [len(records(path)) for path in tasks] == [300, 256]


def test_no_expression_occurs_twice(tasks: tuple[Path, Path]) -> None:
    ids = [record["id"] for path in tasks for record in records(path)]
    assert len(set(ids)) == len(ids)


def test_validation_is_held_out_by_content_so_other_seeds_are_disjoint_too(tasks: tuple[Path, Path]) -> None:
    held_out = load("make_tasks").held_out
    train, validation = tasks
    assert not any(held_out(record["id"]) for record in records(train))
    assert all(held_out(record["id"]) for record in records(validation))


def test_half_have_two_terms_and_half_have_three(tasks: tuple[Path, Path]) -> None:
    for path in tasks:
        signs = [sum(record["id"].count(sign) for sign in "+-") for record in records(path)]
        assert signs.count(1) == signs.count(2) == len(signs) / 2


def test_answers_are_right(tasks: tuple[Path, Path]) -> None:
    for record in records(tasks[1]):
        answer = final_number(record["answer"])
        assert answer is not None and answer.value == sums.evaluate(record["id"])


def test_equal_seeds_write_equal_files_and_others_do_not(tasks: tuple[Path, Path]) -> None:
    train, validation = tasks
    make_tasks = load("make_tasks").make_tasks
    assert make_tasks(seed=0, train=300, validation=256) == (records(train), records(validation))
    assert make_tasks(seed=1, train=300, validation=256)[0] != records(train)


def test_the_tasks_need_no_package_that_must_be_compiled(tmp_path: Path) -> None:
    """reasoning-gym needs a C compiler; the demo's machine may have none."""
    code = "import sys, runpy; sys.modules['reasoning_gym'] = None; runpy.run_path(sys.argv[0], run_name='__main__')"
    options = ["--train", "8", "--validation", "8", "--out", str(tmp_path)]
    script = f"import sys; sys.argv[0] = {str(FOLDER / 'make_tasks.py')!r}; " + code
    done = subprocess.run(
        [sys.executable, "-c", script, *options], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert len(records(tmp_path / "train.jsonl")) == 8


def test_the_terms_of_an_expression_all_have_one_digit_or_all_have_two(tasks: tuple[Path, Path]) -> None:
    digits = [
        {len(term) for term in re.split("[+-]", record["id"])} for path in tasks for record in records(path)
    ]
    assert {1} in digits and {2} in digits and all(len(lengths) == 1 for lengths in digits)


def test_more_tasks_than_there_are_is_an_error() -> None:
    make_tasks = load("make_tasks")
    make_tasks.DRAWS = 1000  # of 200,000
    with pytest.raises(ValueError, match="ask for fewer"):
        make_tasks.make_tasks(seed=0, train=60_000, validation=1)
