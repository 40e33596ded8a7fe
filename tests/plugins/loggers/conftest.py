"""A real short run with loggers."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.backbone import RunResult
from tests.core.test_hooks import Training, training  # noqa: F401

Run = Callable[..., RunResult]


@pytest.fixture
def run(training: Training, monkeypatch: pytest.MonkeyPatch) -> Run:  # noqa: F811
    """Train for two steps, with four episodes in each, and a checkpoint and a validation after each."""
    monkeypatch.chdir(training.folder)
    tasks = [{"id": f"v{i}", "query": "held out"} for i in range(2)]
    (training.folder / "held_out.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))

    def run(
        *loggers: Any, workflow: str = "run", steps: int = 2, resume: Path | None = None, **of_run: Any
    ) -> RunResult:
        sets = {"task.validation": "held_out.jsonl", "eval.every": 1, "train.save_every": 1}
        sets |= {f"run.{key}": value for key, value in of_run.items()}
        return training.run(workflow, steps=steps, sets=sets, resume=resume, loggers=list(loggers))

    return run


@pytest.fixture
def said(training: Training) -> Callable[[], list[str]]:  # noqa: F811
    """Return the lines that the run has shown about its loggers."""
    return lambda: [line for line in training.lines.said if "logger " in line]


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a database of MLflow's; making one takes it many seconds."""
    from mlflow import MlflowClient

    folder = tmp_path_factory.mktemp("mlflow")
    with chdir(folder):  # where it keeps its artifacts
        MlflowClient(f"sqlite:///{folder}/store.db").search_experiments()
    return f"sqlite:///{folder}/store.db"
