"""docs/loggers.md: its jobs run, its lines are those of a run; plugins/loggers/KEYS.md has every key with its default."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.plugins import load_plugins
from ajet_loggers.tool import known_id
from tests.pages import ROOT, blocks, files, page

from .collector import collector
from .conftest import Run
from .test_mlflow import client

pytest.importorskip("wandb")
pytest.importorskip("mlflow")
pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
PAGE = page("docs/loggers.md")
KEYS = page("plugins/loggers/KEYS.md")


def loggers_of(name: str) -> Any:
    return yaml.safe_load(files(PAGE)[name])["run"]["loggers"]


@pytest.mark.parametrize("name", ["job.yaml", "traced.yaml", "stored.yaml"])
def test_its_jobs_name_loggers_with_keys_that_they_have(name: str) -> None:
    for fields in loggers_of(name):
        known = load_plugins().classes["logger", fields.pop("type")].cls
        assert known.model_validate(fields)


@pytest.mark.slow  # that these tools get a run is in their own tests
def test_its_job_runs(run: Run, said: Callable[[], list[str]], store: str) -> None:
    shutil.copy(store.removeprefix("sqlite:///"), "mlflow.db")
    result = run(*loggers_of("job.yaml"))
    run_id = known_id(result.run_dir, "mlflow")
    assert client("sqlite:///mlflow.db").get_run(run_id).info.run_name == result.run_dir.name
    assert list(result.run_dir.glob("wandb/offline-run-*")) and not said()


@pytest.mark.whole
def test_its_traced_job_runs(run: Run, said: Callable[[], list[str]], tmp_path: Path) -> None:
    (logger,) = loggers_of("traced.yaml")
    with collector(tmp_path / "spans.jsonl") as received:
        run({**logger, "endpoint": received.url})
    assert len({span["traceId"] for span in received.spans}) == 2 * 4 + 3 * 2 and not said()
    assert {headers["x-mlflow-experiment-id"] for headers in received.headers} == {"1"}


@pytest.mark.whole
def test_its_stored_job_copies_the_run_folder(
    run: Run, said: Callable[[], list[str]], tmp_path: Path
) -> None:
    (logger,) = loggers_of("stored.yaml")
    result = run({**logger, "to": f"file://{tmp_path}/store"})
    assert (tmp_path / "store" / result.run_dir.name / "job.yaml").exists() and not said()


def test_the_tables_of_keys_have_every_key_with_its_default() -> None:
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`[^`]+`(?:, )?)+) \|", KEYS, re.MULTILINE)
    shown = {
        (key, yaml.safe_load(default)) if not default.startswith(("[", "{")) else (key, default)
        for keys, defaults in rows
        for key, default in zip(re.findall("`(.+?)`", keys), re.findall("`(.+?)`", defaults), strict=True)
    }
    classes = load_plugins().classes
    for name in ("tensorboard", "wandb", "mlflow", "swanlab", "trackio", "otel", "atif", "store"):
        for key, field in classes[("logger", name)].cls.model_fields.items():
            default = None if field.is_required() else field.default
            default = {(): "[]"}.get(default, default) if default != {} else "{}"
            assert (key, default) in shown, f"{name}: {key}"


def test_its_extras_are_those_of_the_distribution() -> None:
    named = set(re.findall(r"ajet-plugin-loggers\[(\w+)\]", PAGE))
    provided = importlib.metadata.metadata("ajet-plugin-loggers").get_all("Provides-Extra")
    assert named == {*provided} - {"all"}


@pytest.mark.kept
def test_its_lines_are_those_of_a_run_without_a_server(
    run: Run, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run({"type": "mlflow", "tracking_uri": "http://127.0.0.1:9"})
    unreachable, counted = said()
    first, second = blocks(PAGE, "text")[0].splitlines()
    begins, _, _ = first.partition(" failed). The run continues.")
    assert (
        unreachable.startswith(begins) and unreachable.endswith(" The run continues.") and counted == second
    )


def test_the_versions_that_it_names_are_the_pinned_ones() -> None:
    pins = (ROOT / "constraints.txt").read_text() + (ROOT / "tests/matrix.py").read_text()
    for distribution, name in {
        "tensorboard": "TensorBoard",
        "wandb": "wandb",
        "mlflow": "MLflow",
        "mlflow-skinny": "MLflow",
        "swanlab": "SwanLab",
        "trackio": "Trackio",
        "opentelemetry-sdk": "OpenTelemetry",
    }.items():
        (version,) = re.findall(rf"Tested with .*{name} (\d[\d.]*\d)", PAGE)
        assert re.search(
            rf'^\W*{distribution}=={re.escape(version)}|"{distribution}=={version}"', pins, re.MULTILINE
        )
