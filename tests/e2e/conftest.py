"""The installed program on a model of a few thousand weights."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.cli import run_program
from tests.patience import PATIENCE
from tests.tiny import save_tiny_model
from tests.warm import Warm

AGENT = """
import openai
client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
async def run(task):
    ask = [{"role": "user", "content": task.query}]
    first = await client.chat.completions.create(model="m", messages=ask, max_tokens=6)
    ask += [first.choices[0].message, {"role": "user", "content": "go on"}]
    answer = await client.chat.completions.create(model="m", messages=ask, max_tokens=6)
    return answer.choices[0].message.content or ""
def judge(task, output):
    return float(len(set(str(output.response))))
def share(task, output):
    return judge(task, output) / 40
def constant(task, output):
    return 0.1
"""

STEPS = 4
"""Of the project's job."""
EPISODES = 2 * 3
"""Of one step: tasks times members of a group."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), tokenizer)


class Project:
    """A user's folder: an agent, tasks, a job file."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self._started: list[Warm] = []
        (folder / "agent.py").write_text(AGENT)
        (folder / "tasks.jsonl").write_text(
            "".join(json.dumps({"id": f"q{i}", "query": f"say {i}"}) + "\n" for i in range(6))
        )
        self.job(
            task={"reader": "tasks.jsonl"},
            workflow="agent.py:run",
            judge="agent.py:judge",
            model=str(model),
            rollout={"group_size": 3},
            train={
                "steps": STEPS,
                "batch_size": 2,
                "learning_rate": 1e-3,
                "save_every": 1,
                "mini_batches": 2,
            },
            backbone={"local": {"threads": 1}},
            run={"deterministic": True},
        )

    def job(self, **values: Any) -> None:
        (self.folder / "job.yaml").write_text(yaml.safe_dump(values))

    def start(self, *arguments: str) -> Warm:
        """Start `ajet` in the folder, in a process of its own."""
        process = Warm(*arguments, cwd=self.folder)
        self._started.append(process)
        return process

    def end(self) -> None:
        """Kill what a failed test left running."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.wait(PATIENCE)

    def ajet(self, *arguments: str, code: int = 0) -> str:
        """Run `ajet` to its end, in this process: a process of its own takes longer than most runs. Its output."""
        output = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(output), redirect_stderr(output):
            patch.chdir(self.folder)
            patch.setattr(sys, "path", [str(self.folder), *sys.path])
            found = run_program(arguments)
        assert found == code, output.getvalue()
        return output.getvalue()

    def runs(self, name: str) -> list[Path]:
        return sorted((self.folder / name).iterdir())


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Iterator[Project]:
    project = Project(tmp_path, tiny_model)
    yield project
    project.end()


@pytest.hookimpl(tryfirst=True)  # before those with the marker `slow` are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One run for each key that a backbone declares; the backbones' own tests have these keys in one process."""
    for item in items:
        if item.name.startswith("test_the_backbone[what_it_declares_is_honoured"):
            item.add_marker(pytest.mark.slow)
