"""examples/coding: the agent as a program in a repository, transcripts that are exactly what its shell would print, and a judge
that no edit of the tests can deceive."""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from ajet import EpisodeView, Task, WorkflowOutput
from ajet_judges.code import Code
from tests.examples.test_math_code import with_walls
from tests.patience import PATIENCE

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding"
MODULES = ("agent", "recipe", "repairs")


@pytest.fixture(scope="module")
def example() -> Iterator[Callable[[str], ModuleType]]:
    """Imports a module of the example's folder, whose name other examples use too."""
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(EXAMPLE))
    yield importlib.import_module
    sys.path.remove(str(EXAMPLE))
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def verdict(repair: Any, left: Mapping[str, str], folder: Path) -> float:
    """The reward of the files that an agent has left, by the judge that the job names."""
    assert yaml.safe_load((EXAMPLE / "job.yaml").read_text())["judge"] == "code"
    folder.mkdir(exist_ok=True)
    files = {name: folder / name for name in left}
    for name, path in files.items():
        path.write_text(left[name])
    task = Task(repair.id, repair.query, metadata={"tests": repair.tests})
    output = WorkflowOutput(response="Done.", files=files)
    return asyncio.run(Code().judge(task, output, EpisodeView("e", repair.id, 0, 0))).reward


def written(files: Mapping[str, str], folder: Path) -> Path:
    """The folder, with these files."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def said(commands: list[str]) -> Callable[[Request], Response]:
    """A model that runs commands, one after the other, and then is done."""

    def respond(request: Request) -> Response:
        turn = sum(m["role"] == "tool" for m in json.loads(request.get_data())["messages"])
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if turn < len(commands):
            function = {"name": "shell", "arguments": json.dumps({"command": commands[turn]})}
            message["tool_calls"] = [{"id": f"c{turn}", "type": "function", "function": function}]
        return Response(json.dumps({"choices": [{"message": message}]}), content_type="application/json")

    return respond


def work(server: HTTPServer, commands: list[str], query: str, folder: Path) -> list[dict[str, Any]]:
    """Runs the agent as a program in a folder, with a model that runs these commands; the messages of its last call."""
    server.expect_request("/v1/chat/completions").respond_with_handler(said(commands))
    done = subprocess.run(
        [sys.executable, EXAMPLE / "agent.py", query],
        cwd=folder,
        env={"OPENAI_BASE_URL": server.url_for("/v1"), "OPENAI_API_KEY": "k", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    messages: list[dict[str, Any]] = json.loads(server.log[-1][0].get_data())["messages"]
    return messages


@pytest.mark.parametrize("seed", range(4))
def test_transcripts_show_what_the_agents_shell_prints(
    seed: int, example: Any, httpserver: HTTPServer, tmp_path: Path
) -> None:
    """The recipe computes what each command prints; here they are run."""
    recipe, repairs = example("recipe"), example("repairs")
    repair = repairs.draw(random.Random(seed))
    expected = recipe.session(random.Random(seed), 1.0, 0.3, 0.0).messages
    commands = [
        json.loads(m["tool_calls"][0]["function"]["arguments"])["command"]
        for m in expected
        if m.get("tool_calls")
    ]
    messages = work(httpserver, commands, repair.query, written(repair.files, tmp_path / "repository"))
    shown = [m["content"] for m in messages if m["role"] == "tool"]
    assert shown == [m["content"] for m in expected if m["role"] == "tool"]
    assert [m["content"] for m in messages[:2]] == [m["content"] for m in expected[:2]]


@pytest.mark.whole
@with_walls
def test_every_bug_shows_in_the_test_and_is_gone_after_its_fix(example: Any, tmp_path: Path) -> None:
    recipe, repairs = example("recipe"), example("repairs")
    rng = random.Random(1)
    drawn = [repairs.draw(rng) for _ in range(200)]
    assert {len(repair.bug) > 1 or repair.bug.isdecimal() for repair in drawn} == {True, False}
    for repair in drawn:
        assert recipe.tested(repair.files) != "passed" == recipe.tested(repair.right_files)
    assert verdict(drawn[0], drawn[0].files, tmp_path) == 0.0
    assert verdict(drawn[0], drawn[0].right_files, tmp_path) == 1.0


@pytest.mark.whole
@with_walls
def test_neither_an_edited_test_nor_the_results_it_shows_nor_an_early_exit_is_a_repair(
    example: Any, tmp_path: Path
) -> None:
    recipe, repairs = example("recipe"), example("repairs")
    rng = random.Random(2)
    repair = next(r for r in iter(lambda: repairs.draw(rng), None) if not r.bug.isdecimal())
    module, shown = f"{repair.module}.py", repair.value(*repair.numbers)
    head = repair.files[module].partition("return")[0]
    edited = {**repair.files, "test.py": 'print("passed")\n'}
    coded = {**repair.files, module: f"{head}return {shown}\n"}
    quits = {**repair.files, module: f"import os\n{head}print({shown}, flush=True) or os._exit(0)\n"}
    assert recipe.tested(coded) == "passed"
    assert [verdict(repair, left, tmp_path) for left in (edited, coded, quits)] == [0.0] * 3
    assert verdict(repair, {**repair.right_files, "test.py": ""}, tmp_path) == 1.0


@pytest.mark.parametrize(
    ("command", "result"),
    [
        ("echo a; echo b >&2", "a\nb"),
        ("false", "exit 1"),
        ("printenv OPENAI_API_KEY", "exit 1"),
        ("python -c 'print(\"x\" * 3000)'", "x" * 2000),
    ],
)
def test_the_model_sees_the_end_of_what_a_command_prints_or_its_exit_code(
    command: str, result: str, example: Any, httpserver: HTTPServer, tmp_path: Path
) -> None:
    messages = work(httpserver, [command], "q", tmp_path)
    assert messages[-1]["content"] == result


def test_an_agent_that_never_answers_ends_after_its_turns(
    example: Any, httpserver: HTTPServer, tmp_path: Path
) -> None:
    turns = example("agent").TURNS
    work(httpserver, ["true"] * (turns + 5), "q", tmp_path)
    assert len(httpserver.log) == turns
