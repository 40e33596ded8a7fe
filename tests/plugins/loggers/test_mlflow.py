"""The logger `mlflow` with MLflow itself: what its client reads back from a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet_loggers.mlflow import LONGEST_PARAM
from ajet_loggers.tool import known_id

from .conftest import Run
from .logged import Logged, load, rows_of, same_as_the_run_folder

pytestmark = pytest.mark.whole

pytest.importorskip("mlflow")


@pytest.fixture
def logger(store: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"type": "mlflow", "tracking_uri": store, "experiment": request.node.name}


def client(store: str) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(store)


def read(store: str, run_dir: Path) -> Logged:
    mlflow, run_id = client(store), known_id(run_dir, "mlflow")
    run = mlflow.get_run(run_id)
    metrics: dict[int, Any] = {}
    for name in run.data.metrics:
        for point in mlflow.get_metric_history(run_id, name):
            metrics.setdefault(point.step, {})[name] = point.value
    folder = Path(mlflow.download_artifacts(run_id, ""))
    tables = {
        (path.parent.name, int(path.stem.removeprefix("step_"))): rows_of(load(path))
        for path in folder.glob("episodes/*/*.json")
    }
    tags = run.data.tags
    last = {int(tags["ajet.checkpoint_step"]): tags["ajet.checkpoint"]}
    return Logged(yaml.safe_load((folder / "job.yaml").read_text()), metrics, tables, last)


def test_a_run_has_its_name_and_its_tags(run: Run, store: str, logger: dict[str, Any]) -> None:
    result = run(logger, steps=1, name="rate 1e-4", tags=["sweep"])
    found = client(store).get_run(known_id(result.run_dir, "mlflow"))
    assert (found.info.run_name, found.data.tags["sweep"]) == ("rate 1e-4", "true")


def test_mlflow_has_what_the_run_folder_has(
    run: Run, store: str, logger: dict[str, Any], said: Callable[[], list[str]]
) -> None:
    result = run(logger)
    logged = read(store, result.run_dir)
    assert logged.checkpoints == {2: str(result.checkpoint)}, "a tag names the last one"
    earlier = {1: str(result.checkpoint).replace("000002", "000001")}
    both = Logged(logged.config, logged.metrics, logged.tables, earlier | logged.checkpoints)
    same_as_the_run_folder(both, result.run_dir)
    assert not said()
    info = client(store).get_run(known_id(result.run_dir, "mlflow")).info
    assert (info.run_name, info.status) == (result.run_dir.name, "FINISHED")
    assert client(store).get_experiment(info.experiment_id).name == logger["experiment"]


def test_the_job_is_parameters_by_dotted_key(run: Run, store: str, logger: dict[str, Any]) -> None:
    result = run(logger)
    params = client(store).get_run(known_id(result.run_dir, "mlflow")).data.params
    assert (params["train.steps"], params["judge.type"], params["train.filters"]) == ("2", "always", "[]")
    assert json.loads(params["run.loggers"]) == [logger]
    assert max(map(len, params.values())) <= LONGEST_PARAM


def test_a_resumed_run_continues_the_same_run_with_its_first_parameters(
    run: Run, store: str, logger: dict[str, Any], said: Callable[[], list[str]]
) -> None:
    result = run(logger, steps=1)
    run_id = known_id(result.run_dir, "mlflow")
    run(logger, steps=2, resume=result.run_dir)
    assert known_id(result.run_dir, "mlflow") == run_id and not said()
    logged = read(store, result.run_dir)
    assert logged.metrics.keys() == {0, 1, 2} and logged.config["train"]["steps"] == 2
    data = client(store).get_run(run_id).data
    assert data.params["train.steps"] == "1", "MLflow never changes a parameter"


def test_checkpoints_are_uploaded_if_the_job_says_so(run: Run, store: str, logger: dict[str, Any]) -> None:
    result = run({**logger, "upload_checkpoints": True})
    folder = Path(client(store).download_artifacts(known_id(result.run_dir, "mlflow"), "checkpoints"))
    for checkpoint in (result.run_dir / "checkpoints").iterdir():
        for file in checkpoint.iterdir():
            assert (folder / checkpoint.name / file.name).read_bytes() == file.read_bytes()


def test_a_failed_run_is_marked_as_failed(run: Run, store: str, logger: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="all 2 episodes failed"):
        run(logger, workflow="fails")
    (run_dir,) = Path("runs").resolve().iterdir()
    assert client(store).get_run(known_id(run_dir, "mlflow")).info.status == "FAILED"


def test_names_that_mlflow_refuses_are_changed(run: Run, store: str, logger: dict[str, Any]) -> None:
    from ajet.interfaces.events import RunEnd, RunStart
    from ajet_loggers.mlflow import MLflow

    folder = Path.cwd()
    mlflow = MLflow(**{key: value for key, value in logger.items() if key != "type"})
    mlflow.run_start(RunStart(run_dir=folder, config={"targets": {"a[b]": "x" * 10_000}}))
    mlflow.log(folder, 1, {"failed/workflow:Key[é]%": 1.0, "loss": float("nan")})
    mlflow.run_end(RunEnd(run_dir=folder))
    mlflow.close()
    data = client(store).get_run(known_id(folder, "mlflow")).data
    assert data.params == {"targets.a_b_": "x" * LONGEST_PARAM}
    assert data.metrics.keys() == {"failed/workflow:Key_é__", "loss"}
    assert data.metrics["loss"] != data.metrics["loss"], "not a number"


def test_a_run_without_a_server_says_so_once_and_counts_at_its_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert run({"type": "mlflow", "tracking_uri": "http://127.0.0.1:9"}).steps == 2
    unreachable, counted = said()
    assert unreachable.startswith("logger mlflow: sending to http://127.0.0.1:9 failed (MlflowException: ")
    assert unreachable.endswith(" The run continues.") and "\n" not in unreachable
    assert counted == "logger mlflow: 12 of 12 records were not sent to http://127.0.0.1:9"
