"""The logger `wandb` with wandb itself, offline: what its files contain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet_loggers.tool import known_id

from .conftest import Run
from .logged import Logged, load, nested, rows_of, same_as_the_run_folder
from .wandb_file import records

pytestmark = pytest.mark.whole

pytest.importorskip("wandb")
OFFLINE = {"type": "wandb", "mode": "offline"}


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What wandb keeps beside a run stays in the test's folder."""
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


@pytest.fixture(scope="module")
def kept() -> list[Path]:
    """The folder of the run that several tests look at, once the first of them has made it."""
    return []


@pytest.fixture
def whole(kept: list[Path], run: Run, said: Callable[[], list[str]]) -> Path:
    """The folder of a run of two steps: each takes wandb seconds."""
    if not kept:
        kept.append(run(OFFLINE).run_dir)
        assert not said()
    return kept[0]


def history(run_dir: Path, starts: int = 1) -> Iterator[dict[str, Any]]:
    """The rows that were logged, without wandb's own figures."""
    for record in records(run_dir, starts):
        items = record.history.item
        row = nested({tuple(i.nested_key) or (i.key,): json.loads(i.value_json) for i in items})
        if row:
            yield {key: value for key, value in row.items() if not key.startswith("_")}


def read(run_dir: Path) -> Logged:
    config: dict[str, Any] = {}
    checkpoints = {}
    for record in records(run_dir):
        config |= {u.key: json.loads(u.value_json) for u in record.run.config.update if u.key != "_wandb"}
        if record.artifact.type == "model":
            facts = json.loads(record.artifact.metadata)
            checkpoints[facts["step"]] = facts["path"]
    metrics: dict[int, Any] = {}
    tables = {}
    (files,) = {file.parent for file in (run_dir / "wandb").glob("offline-run-*/files")} or {None}
    for row in history(run_dir):
        step = row.pop("step")
        for name, value in row.items():
            if name.startswith("episodes/"):
                tables[(name.removeprefix("episodes/"), step)] = rows_of(
                    load(files / "files" / value["path"])
                )
            else:
                metrics.setdefault(step, {})[name] = value
    return Logged(config, metrics, tables, checkpoints)


def test_wandb_has_what_the_run_folder_has(whole: Path) -> None:
    same_as_the_run_folder(read(whole), whole)
    (begun,) = [record.run for record in records(whole) if record.HasField("run")]
    assert (begun.project, begun.display_name) == ("AgentJet", whole.name)
    assert begun.run_id == known_id(whole, "wandb")
    (ended,) = [record.exit.exit_code for record in records(whole) if record.HasField("exit")]
    assert ended == 0


def test_a_run_has_its_name_and_its_tags(run: Run) -> None:
    result = run(OFFLINE, steps=1, name="rate 1e-4", tags=["sweep", "short"])
    (begun,) = [record.run for record in records(result.run_dir) if record.HasField("run")]
    assert (begun.display_name, list(begun.tags)) == ("rate 1e-4", ["sweep", "short"])


def test_every_figure_is_drawn_over_our_steps(whole: Path) -> None:
    (every,) = [r.metric for r in records(whole) if r.metric.glob_name]
    assert (every.glob_name, every.step_metric) == ("*", "step")


def test_checkpoints_are_references_unless_they_are_uploaded(whole: Path, run: Run) -> None:
    def entries(run_dir: Path) -> list[list[Any]]:
        artifacts = [r.artifact for r in records(run_dir) if r.artifact.type == "model"]
        return [list(artifact.manifest.contents) for artifact in artifacts]

    referred = entries(whole)
    uploaded = entries(run({**OFFLINE, "upload_checkpoints": True}).run_dir)
    assert len(referred) == len(uploaded) == 2
    for reference, upload in zip(referred, uploaded, strict=True):
        assert all(entry.ref.startswith("file:///") and not entry.local_path for entry in reference)
        assert all(entry.local_path and not entry.ref for entry in upload)
        assert [entry.path for entry in upload] == [entry.path for entry in reference] != []


def test_a_resumed_run_keeps_its_id(run: Run) -> None:
    result = run(OFFLINE, steps=1)
    run(OFFLINE, steps=2, resume=result.run_dir)
    ids = [record.run.run_id for record in records(result.run_dir, 2) if record.HasField("run")]
    assert len(ids) == 2 and len(set(ids)) == 1
    assert {row["step"] for row in history(result.run_dir, 2)} == {0, 1, 2}


def test_a_failed_run_is_marked_as_failed(run: Run, said: Callable[[], list[str]]) -> None:
    with pytest.raises(Exception, match="all 2 episodes failed"):
        run(OFFLINE, workflow="fails")
    (run_dir,) = Path("runs").iterdir()
    assert [r.exit.exit_code for r in records(run_dir.resolve()) if r.HasField("exit")] == [1]
