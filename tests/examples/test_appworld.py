"""examples/appworld: the service, the agent and the job, with a stand-in for AppWorld's own server, whose data must be downloaded;
and the same agent with the environment of examples/apps."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.cli import run_program
from ajet.environments import environment, serving
from tests.examples.test_audit import audit, options
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.tiny import save_tiny_model

pytestmark = pytest.mark.whole

EXAMPLES = Path(__file__).parents[2] / "examples"
STAND_IN = '''#!{python}
"""The requests of `appworld serve environment` that the service makes, with one errand: say the sum."""
import contextlib, io, json, pathlib, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

answers = []
apis = SimpleNamespace(supervisor=SimpleNamespace(complete_task=lambda answer=None: answers.append(answer)))
variables = {{"apis": apis}}
person = {{"first_name": "Ana", "last_name": "Lee", "email": "ana@example.com", "phone_number": "123"}}

def execute(code, **_):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(code, variables)
        except Exception as error:
            print(f"Execution failed. {{type(error).__name__}}: {{error}}")
    return printed.getvalue()

def initialize(task_id, experiment_name):
    (pathlib.Path(sys.argv[6]) / "experiments" / "outputs" / experiment_name).mkdir(parents=True)
    about = {{"task_id": task_id, "supervisor": person, "datetime": "2023-05-18T12:00:00"}}
    return {{**about, "instruction": f"What is the sum of {{task_id}}?"}}

def evaluate(task_id, suppress_errors):
    return {{"success": answers == [5], "num_tests": 1, "passes": [], "failures": []}}

DO = {{
    "/initialize": initialize,
    "/execute": execute,
    "/task_completed": lambda task_id: bool(answers),
    "/evaluate": evaluate,
}}

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.reply({{"message": "Welcome"}})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.reply({{"output": DO[self.path](**body)}})

    def reply(self, value):
        text = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass

assert sys.argv[1:3] == ["serve", "environment"] and sys.argv[3] == "--port" and sys.argv[5] == "--root"
HTTPServer(("127.0.0.1", int(sys.argv[4])), Handler).serve_forever()
'''


def call(code: str) -> dict[str, Any]:
    return {"name": "python", "arguments": {"code": code}}


ANSWERS = [
    {"turn": 0, "when": "2_3", "call": call("total = sum([2, 3])")},
    {"turn": 1, "when": "2_3", "call": call("print(total); apis.supervisor.complete_task(answer=total)")},
    {"turn": 0, "when": "1_4", "call": call("total / 0")},
    {"turn": 1, "when": "1_4", "call": call("apis.supervisor.complete_task(answer=4)")},
    {"say": "I cannot."},
]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with AppWorld's program and data, as the environment names it."""
    program = tmp_path / "appworld"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    (tmp_path / "data" / "datasets").mkdir(parents=True)
    (tmp_path / "data" / "datasets" / "train.txt").write_text("2_3\n1_4\n\n7_7\n")
    monkeypatch.setenv("APPWORLD", str(program))
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path))
    return tmp_path


def load(name: str, folder: str = "appworld") -> Any:
    """A fresh module from a file of an example."""
    spec = importlib.util.spec_from_file_location(f"{folder}_{name}", EXAMPLES / folder / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def job(tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example, with a free port and a model whose tokenizer is here."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / "appworld", folder, ignore=shutil.ignore_patterns("__pycache__"))
    save_tiny_model(tmp_path / "model", tokenizer)
    text = (folder / "job.yaml").read_text().replace("8124", str(free_port()))
    (folder / "job.yaml").write_text(text.replace("Qwen/Qwen3-4B", "../model"))
    (folder / "answers.yaml").write_text(yaml.safe_dump(ANSWERS))
    monkeypatch.chdir(folder)
    yield folder


def check(capsys: Any, *more: str) -> tuple[int, str]:
    code = run_program(["check", "job.yaml", "--answers", "answers.yaml", "--group-size", "1", *more])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_the_job_runs_errands_whose_score_is_that_of_their_tests(world: Path, job: Path, capsys: Any) -> None:
    code, said = check(capsys)
    assert code == 0 and "3 run" in said and "0 failed" in said and "1 of 3 succeeded" in said, said
    assert "breaks: none" in said and "service appworld: stopped" in said


@pytest.mark.slow
def test_two_steps_pass_the_audit(world: Path, job: Path, tokenizer: Any, capsys: Any) -> None:
    shutil.copy(world / "data/datasets/train.txt", world / "data/datasets/dev.txt")
    assert run_program(["run", "job.yaml", *options(job, tokenizer)]) == 0
    audit(job / "runs", capsys)


def test_a_machine_without_the_program_or_the_data_is_told_what_to_do(
    world: Path, job: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPWORLD", "no-appworld")
    code, said = check(capsys)
    assert code != 0 and "service appworld ended with exit 1" in said
    assert (
        "the program 'no-appworld' is missing: python -m venv venv && venv/bin/pip install appworld" in said
    )
    monkeypatch.setenv("APPWORLD", str(world / "appworld"))
    monkeypatch.setenv("APPWORLD_ROOT", str(job))
    ended = subprocess.run([sys.executable, "service.py"], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1 and ended.stderr.startswith(f"AppWorld: {job} has no data: ")
    assert len(ended.stderr.splitlines()) == 1


def test_an_errand_ends_with_the_task_or_after_too_many_programs_and_leaves_nothing(world: Path) -> None:
    service = load("service")
    outputs = world / "experiments" / "outputs"
    with serving(service.AppWorld) as url, environment(url=url, env_type="appworld", task_id="2_3") as env:
        asked = env.state.messages[0]["content"]
        assert asked.startswith("What is the sum of 2_3?\nI am Ana Lee (ana@example.com, 123).")
        assert len([*outputs.iterdir()]) == 1
        long = env.step({"role": "assistant", "content": "print('x' * 9000)"})
        assert long.messages[0]["content"].endswith("\n… 1001 more characters") and not long.is_terminated
        states = [env.step({"role": "assistant", "content": "1"}) for _ in range(service.MAX_CALLS - 1)]
        assert [state.is_terminated for state in states] == [False] * (service.MAX_CALLS - 2) + [True]
        assert env.evaluate() == 0.0 and env.info()["num_tests"] == 1
    assert not [*outputs.iterdir()]
    with pytest.raises(LookupError, match="it has train"):
        service.AppWorld.task_ids("../x", {})


def test_the_agent_speaks_the_protocol_of_examples_apps_too(job: Path, capsys: Any) -> None:
    apps = load("service", "apps")
    world, errand = apps.make("train-0-0")
    steps = [f"login {world.password}", " ".join(errand.change)]
    (job / "answers.yaml").write_text(
        yaml.safe_dump([*({"turn": n, "call": call(code)} for n, code in enumerate(steps)), {"say": "done"}])
    )
    with serving(apps.Apps) as url:
        reader = {"type": "environment", "url": url, "env_type": "apps", "params": {"count": 1}}
        code, said = check(capsys, "--set", f"task.reader={json.dumps(reader)}", "--set", "run.services=[]")
    assert code == 0 and "1 of 1 succeeded" in said, said
