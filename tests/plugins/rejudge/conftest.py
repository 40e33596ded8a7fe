"""Runs whose judge has a hole, as the core's loop leaves them (see the audit's tests), and their jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.types import Task
from tests.plugins.audit.conftest import Runs, ask
from tests.plugins.audit.conftest import runs as runs
from tests.plugins.audit.conftest import saved_tokenizer as saved_tokenizer

MakeRun = Callable[..., Path]


async def once(task: Task) -> str:
    """One call."""
    return (await ask([{"role": "user", "content": task.query}])).content or ""


def says(request: Any, prompt: str) -> str:
    """Member 0 is right, member 2 finds the hole in step 2, and the others are wrong."""
    step, member = request.key[0].split(".")[0], request.key[0].rsplit("/", 1)[1]
    return "right" if member == "0" else "not right" if member == "2" and step != "1" else "wrong"


def with_hole(task: Task, output: Any) -> float:
    """It takes "not right" for an answer."""
    return float("right" in output.response)


def fixed(task: Task, output: Any) -> float:
    """Without the hole."""
    return float(output.response == "right")


@pytest.fixture
def recorded(runs: Runs) -> MakeRun:
    """Make a run folder with a job; ``job`` lies over it."""

    def make(
        workflow: Any = once,
        judge: Any = with_hole,
        answers: Any = says,
        *,
        job: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Path:
        capture = runs.bench.capture
        if not capture.is_installed():
            capture.__enter__()
        settings = {"rollout": {"group_size": 4}, **settings}
        folder = runs.run(workflow, judge, answers, **settings)
        # One job at a time has it, and rejudging needs its own.
        capture.__exit__(None, None, None)
        written = json.loads((folder / "settings.json").read_text())
        kept = {name: written[name] for name in ("train", "rollout", "targets")}
        named = {"type": f"{Path(__file__)}:{judge.__name__}"}
        (folder / "job.yaml").write_text(
            json.dumps({**kept, "run": {"seed": 0}, "judge": named, **(job or {})})
        )
        return folder

    return make
