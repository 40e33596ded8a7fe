"""`run.restarts`: a run resumes after a failure of the machine, counted in its folder, and after no other error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet import Backbone
from ajet.interfaces.backbone import Capabilities, MachineFailed, RunResult
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.rollout.recorder import METRICS, live_lines
from ajet.runs.restarts import RESTARTS, run_job
from ajet.runs.train import train_job
from ajet.types import AjetError, Batch, ConfigError, Metrics
from tests.core.test_hooks import ScriptTrainer, Training, training  # noqa: F401

STEPS = 4


class Lost(Exception):
    """A server has died."""


class Fragile:
    """A cluster on which updates fail with these errors, one after the other, at the version of the weights."""

    def __init__(self, *failures: tuple[int, BaseException]) -> None:
        self.failures = list(failures)
        self.resumed: list[Path | None] = []

    def backbone(self, tokenizer: Any) -> type[Backbone]:
        cluster = self

        class Trainer(ScriptTrainer):
            def update(self, batch: Batch) -> Metrics:
                if cluster.failures and cluster.failures[0][0] == self.version:
                    raise cluster.failures.pop(0)[1]
                return super().update(batch)

            def save(self, path: Path) -> None:
                super().save(path)
                (path / "version").write_text(str(self.version))

            def load(self, path: Path) -> None:
                self.version = self.engine.version = int((path / "version").read_text())

        class FragileBackbone(Backbone):
            """Trains nothing, on machines that fail."""

            name = "fragile"
            capabilities = Capabilities(restarts=True)

            def run(self, job: Job) -> RunResult:
                cluster.resumed.append(job.resume)
                try:
                    return train_job(job, Trainer(tokenizer))
                except Lost as error:
                    (run_dir,) = Path(job.config.run.dir).iterdir()
                    raise MachineFailed(f"server {error} is dead.", run_dir) from error

        return FragileBackbone


RunOn = Callable[..., RunResult]


@pytest.fixture
def run_on(training: Training, tokenizer: Any) -> RunOn:  # noqa: F811
    """Runs four steps on a cluster, with a checkpoint after every second."""

    def run(cluster: Fragile, restarts: int | None = None, backbone: str = "fragile") -> RunResult:
        training.attach("fragile", ajet_plugins=lambda: [cluster.backbone(tokenizer)])
        layers = Layers()
        job = {
            "task": {"reader": "tasks.jsonl"},
            "workflow": "agent.py:run",
            "judge": "always",
            "rollout": {"group_size": 2},
            "train": {"steps": STEPS, "batch_size": 2, "save_every": 2, "keep_last": 9},
            "run": {"dir": str(training.folder / "runs"), **({"restarts": restarts} if restarts else {})},
            "backbone": backbone,
        }
        layers.add(job, "job.yaml", training.folder)
        return run_job(prepare(layers).with_progress(training.lines))

    return run


def said(training: Training) -> list[str]:  # noqa: F811
    return [line for line in training.lines.said if line.startswith("restart ")]


@pytest.mark.whole
def test_after_a_lost_server_the_run_resumes_from_its_last_checkpoint(
    run_on: RunOn,
    training: Training,  # noqa: F811
) -> None:
    cluster = Fragile((0, Lost("a")), (2, Lost("b")))
    result = run_on(cluster, restarts=3)
    run_dir = result.run_dir
    assert cluster.resumed == [None, run_dir, run_dir]
    assert said(training) == [
        "restart 1 of 3, from the beginning, as there is no checkpoint yet: server a is dead.",
        "restart 2 of 3, after step 2: server b is dead.",
    ]
    counted = [json.loads(line) for line in (run_dir / RESTARTS).read_text().splitlines()]
    assert [(c["restart"], c["after_step"], c["why"]) for c in counted] == [
        (1, 0, "server a is dead."),
        (2, 2, "server b is dead."),
    ]
    steps = [line["step"] for line in live_lines(run_dir / METRICS) if line["type"] == "train"]
    assert steps == [1, 2, 3, 4]
    assert result.checkpoint == run_dir / "checkpoints" / "step_000004"


@pytest.mark.whole
def test_the_run_ends_when_no_restart_is_left(run_on: RunOn, training: Training) -> None:  # noqa: F811
    with pytest.raises(
        MachineFailed, match=r"^server b is dead\. No restart is left: 1 of 1 were used \(run\.restarts\)\.$"
    ):
        run_on(Fragile((0, Lost("a")), (0, Lost("b")), (0, Lost("c"))), restarts=1)
    assert len(said(training)) == 1


def test_without_the_key_the_first_failure_ends_the_run(run_on: RunOn, training: Training) -> None:  # noqa: F811
    cluster = Fragile((0, Lost("a")))
    with pytest.raises(MachineFailed, match=r"^server a is dead\.$"):
        run_on(cluster)
    assert cluster.resumed == [None] and not said(training)
    assert not list(training.folder.glob(f"runs/*/{RESTARTS}"))


@pytest.mark.parametrize(
    "error",
    [ConfigError("key: wrong"), AjetError("all episodes failed"), KeyboardInterrupt(), SystemExit(143)],
)
def test_an_error_of_the_user_never_restarts(
    error: BaseException,
    run_on: RunOn,
    training: Training,  # noqa: F811
) -> None:
    cluster = Fragile((0, error))
    with pytest.raises(type(error)):
        run_on(cluster, restarts=3)
    assert cluster.resumed == [None] and not said(training)


@pytest.mark.parametrize("name", ["local", "scripted"])
def test_a_backbone_that_cannot_restart_refuses_the_key(name: str, run_on: RunOn) -> None:
    with pytest.raises(ConfigError, match=rf"^run\.restarts: the backbone '{name}' ends together with"):
        run_on(Fragile(), restarts=1, backbone=name)
