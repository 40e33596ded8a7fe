"""The logger `trackio` with Trackio itself, on this machine: what its command line reads back.

Trackio does not fit beside the other tools of the tests: `make test-matrix ARGS=loggers` runs these.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ajet_loggers.tool import known_id

from .conftest import Run
from .logged import Logged, same_as_the_run_folder

if find_spec("trackio") is None:
    pytest.skip("Trackio is not installed: make test-matrix", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store of the tests' own; Trackio reads its place when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield


@pytest.fixture
def logger(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"type": "trackio", "project": request.node.name[:60]}


def asked(*words: str) -> Any:
    """What Trackio's command line answers."""
    command = [str(Path(sys.executable).with_name("trackio")), *words, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def read(project: str, run_dir: Path) -> Logged:
    name = known_id(run_dir, "trackio")
    assert name is not None
    where = ("--project", project, "--run", name)
    config = asked("get", "run", *where)["config"]
    metrics: dict[int, Any] = {}
    tables = {}
    for metric, points in asked("get", "snapshot", *where, "--around", "1", "--window", "1000")[
        "metrics"
    ].items():
        for point in points:
            if metric.startswith("episodes/"):
                tables[(metric.removeprefix("episodes/"), point["step"])] = point["value"]["_value"]
            else:
                metrics.setdefault(point["step"], {})[metric] = point["value"]
    checkpoints = {}
    for step in metrics.keys() - {0}:
        artifact = checkpoint(project, run_dir, step)
        checkpoints[artifact["metadata"]["step"]] = artifact["metadata"]["path"]
    ours = {key: value for key, value in config.items() if not key.startswith("_")}
    return Logged(ours, metrics, tables, checkpoints)


def checkpoint(project: str, run_dir: Path, step: int) -> Any:
    name = f"checkpoint-{known_id(run_dir, 'trackio')}"
    return asked("get", "artifact", "--project", project, "--name", name, "--version", f"step-{step}")


def test_trackio_has_what_the_run_folder_has(
    run: Run, logger: dict[str, Any], said: Callable[[], list[str]]
) -> None:
    result = run(logger)
    same_as_the_run_folder(read(logger["project"], result.run_dir), result.run_dir)
    assert not said()


def test_checkpoints_are_references_unless_they_are_uploaded(run: Run, logger: dict[str, Any]) -> None:
    referred = run(logger).run_dir
    uploaded = run({**logger, "upload_checkpoints": True}).run_dir
    for run_dir in (referred, uploaded):
        entries = checkpoint(logger["project"], run_dir, 2)["manifest"]
        files = {path.name for path in (run_dir / "checkpoints" / "step_000002").iterdir()}
        assert {entry["path"] for entry in entries} == files
        assert all(entry.get("ref", "").startswith("file:///") == (run_dir == referred) for entry in entries)


def test_a_resumed_run_continues_the_same_run(run: Run, logger: dict[str, Any]) -> None:
    result = run(logger, steps=1)
    name = known_id(result.run_dir, "trackio")
    run(logger, steps=2, resume=result.run_dir)
    assert known_id(result.run_dir, "trackio") == name
    assert asked("list", "runs", "--project", logger["project"])["runs"] == [name]
    assert read(logger["project"], result.run_dir).metrics.keys() == {0, 1, 2}
