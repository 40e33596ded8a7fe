"""Success is judged by what a step has left behind, never by what Trinity says of itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ajet.types import AjetError, Batch, ConfigError
from ajet_trinity.batches import RowLayout, read_rows, rows_of
from ajet_trinity.learner import LearnerFailed, TrinityLearner, last_error
from ajet_trinity.plugin import Trinity, _folder, _gpu_cache
from ajet_trinity.spool import Spool
from ajet_trinity.trainer import TrinityTrainer
from tests.patience import PATIENCE
from tests.plugins.trinity.recorded import batch_of, job_of

LOG = """\
INFO 11-24 23:09:11 [trainer.py:189] Training at step 1 started.
\x1b[36m(Trainer pid=11512)\x1b[0m ERROR 11-24 23:09:11 [trainer.py:156] Error in Trainer:
\x1b[36m(Trainer pid=11512)\x1b[0m ERROR 11-24 23:09:11 [trainer.py:156] Traceback (most recent call last):
\x1b[36m(Trainer pid=11512)\x1b[0m ERROR 11-24 23:09:11 [trainer.py:156]     raise FloatingPointError("the loss")
\x1b[36m(Trainer pid=11512)\x1b[0m ERROR 11-24 23:09:11 [trainer.py:156] builtins.FloatingPointError: the loss is nan.
\x1b[36m(Trainer pid=11512)\x1b[0m INFO 11-24 23:09:11 [trainer.py:269] Saving checkpoint at step 1...
(Trainer pid=11512) INFO 11-24 23:09:11 [trainer.py:175] > Trainer finished.
"""


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    spool = Spool(tmp_path / "trinity")
    spool.create()
    return spool


def test_the_cause_is_the_last_exception_in_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(LOG)
    assert last_error(tmp_path / "log") == "builtins.FloatingPointError: the loss is nan"


def test_a_log_without_an_exception_names_no_cause(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Training at step 1 started.\nErrors: 0\n")
    assert last_error(tmp_path / "log") == ""
    assert last_error(tmp_path / "no such file") == ""


def learner_of(spool: Spool, code: str, patience: float = PATIENCE) -> TrinityLearner:
    """A learner whose first process runs other code instead of Trinity's."""
    fake = spool.folder / "fake" / "ajet_trinity" / "remote"
    fake.mkdir(parents=True)
    for package in (fake.parent, fake):
        (package / "__init__.py").write_text("")
    (fake / "launch.py").write_text(code)
    learner = TrinityLearner(spool, {"mode": "train"}, {}, patience)
    sys.path.insert(0, str(spool.folder / "fake"))  # the learner's processes look where this one does
    try:
        learner.start()
    finally:
        sys.path.pop(0)
    return learner


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes here do not notice that the run has ended, and have nothing to end."""
    monkeypatch.setattr("ajet_trinity.learner.ENDING_SECONDS", 0.2)


def failure(learner: TrinityLearner, spool: Spool) -> LearnerFailed:
    try:
        with pytest.raises(LearnerFailed) as caught:
            learner.wait_for(spool.report(1), "step 1 of Trinity")
    finally:
        learner.close()
    return caught.value


def test_an_end_with_status_0_is_a_failure_that_names_the_logged_exception(spool: Spool) -> None:
    error = failure(learner_of(spool, f"print({LOG!r})"), spool)
    assert str(error) == (
        f"backbone trinity: step 1 of Trinity failed: builtins.FloatingPointError: the loss is nan. See the end of {spool.log}."
    )
    assert not error.machine


def test_a_dead_process_of_ray_counts_as_a_failure_of_the_machine(spool: Spool) -> None:
    error = failure(learner_of(spool, "print('ray.exceptions.ActorDiedError: The actor died')"), spool)
    assert error.machine


def test_a_killed_learner_is_a_failure_of_the_machine(spool: Spool) -> None:
    error = failure(learner_of(spool, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), spool)
    assert "its process was ended by SIGKILL during step 1 of Trinity" in str(error)
    assert error.machine


def test_a_learner_that_does_nothing_is_given_up(spool: Spool) -> None:
    error = failure(learner_of(spool, "import time; time.sleep(600)", patience=0.2), spool)
    assert "took more than 0.2 s (backbone.trinity.patience)" in str(error)


def test_a_learner_that_ignores_the_end_of_the_run_is_killed(spool: Spool) -> None:
    learner = learner_of(spool, "import time; time.sleep(600)")
    pid = learner.pid
    assert pid is not None
    learner.close()
    learner.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def test_starting_a_learner_twice_starts_one(spool: Spool) -> None:
    learner = learner_of(spool, "import time; time.sleep(600)")
    pid = learner.pid
    learner.start()
    assert learner.pid == pid
    learner.close()


class Reporting:
    """A learner that reports what a test says."""

    def __init__(self, spool: Spool, report: dict[str, Any], norms: list[float], weights: Any) -> None:
        self.spool = spool
        self.report, self.norms, self.weights = report, norms, weights

    def wait_for(self, path: Path, what: str) -> None:
        if path == self.spool.ready:
            path.touch()
            self.spool.norms.write_text("".join(f"{norm}\n" for norm in self.norms))
            self.spool.actor(1).mkdir(parents=True)
            save_file(self.weights, self.spool.weights(1))
            self.spool.report(1).write_text(json.dumps(self.report))
        assert path.exists()


class Engine:
    version = 0


@pytest.fixture
def batch(tmp_path: Path) -> Batch:
    return batch_of(job_of(tmp_path, {"train": {"batch_size": 3}})).batch


OLD = {"w": torch.zeros(3), "tied": torch.ones(2)}
NEW = {"w": torch.tensor([0.0, 0.0, 1e-6]), "tied": torch.ones(2)}


def trainer_of(spool: Spool, batch: Batch, **changed: Any) -> TrinityTrainer:
    layout = RowLayout(64, 1)
    rows = rows_of(batch, layout, 1.0)
    report = {
        "actor/ajet_tokens": float(rows.tokens),
        "actor/ajet_objective": 0.5,
        "actor/ajet_difference": 1.0,
        "actor/ajet_compared": 10.0,
        "actor/ajet_max_difference": 0.3,
        **changed.pop("report", {}),
    }
    model = spool.folder / "model"
    model.mkdir()
    save_file(OLD, model / "model.safetensors")
    learner = Reporting(spool, report, changed.pop("norms", [2.0]), changed.pop("weights", NEW))
    return TrinityTrainer(learner, Engine(), model=model, layout=layout, temperature=1.0)  # type: ignore[arg-type]


def test_a_step_with_report_optimizer_step_and_new_weights_has_succeeded(spool: Spool, batch: Batch) -> None:
    metrics = trainer_of(spool, batch).update(batch)
    assert metrics["loss"] == 0.5 and metrics["grad_norm"] == 2.0 and metrics["optimizer_steps"] == 1
    assert metrics["logprob_diff_mean"] == 0.1 and metrics["logprob_diff_max"] == 0.3
    assert not spool.update(1).exists()


def test_another_number_of_tokens_is_an_error(spool: Spool, batch: Batch) -> None:
    trainer = trainer_of(spool, batch, report={"actor/ajet_tokens": 7.0})
    with pytest.raises(LearnerFailed, match=r"\d+ trained tokens were sent, but Trinity trained 7"):
        trainer.update(batch)
    assert read_rows(spool.update(1))  # to look at


def test_weights_that_have_not_changed_are_an_error(spool: Spool, batch: Batch) -> None:
    trainer = trainer_of(spool, batch, weights=OLD)
    with pytest.raises(
        LearnerFailed, match="has advantages other than 0 and a gradient of norm 2, but no weight has"
    ):
        trainer.update(batch)


def test_weights_may_stay_if_every_gradient_was_clipped_away(spool: Spool, batch: Batch) -> None:
    assert trainer_of(spool, batch, weights=OLD, norms=[0.0]).update(batch)["grad_norm"] == 0


@pytest.mark.parametrize(
    "changed", [{"report": {"actor/ajet_objective": float("nan")}}, {"norms": []}], ids=["loss", "gradient"]
)
def test_a_loss_or_a_gradient_that_is_not_finite_is_an_error(
    spool: Spool, batch: Batch, changed: dict[str, Any]
) -> None:
    with pytest.raises(FloatingPointError, match="of 1 optimizer steps were taken"):
        trainer_of(spool, batch, **changed).update(batch)


def test_a_batch_without_credit_is_not_sent(spool: Spool, batch: Batch) -> None:
    none = replace(batch, samples=[replace(s, advantages=np.zeros_like(s.advantages)) for s in batch.samples])
    metrics = trainer_of(spool, batch).update(none)
    assert metrics["optimizer_steps"] == metrics["tokens_trained"] == 0
    assert metrics["tokens_zero_advantage"] == sum(int(s.mask.sum()) for s in none.samples)
    assert not spool.ready.exists()


def test_the_engines_cache_is_what_the_weights_leave_of_a_gpu(spool: Spool) -> None:
    model = spool.folder / "model"
    model.mkdir()
    save_file({"a": torch.zeros(1000, 500), "b": torch.zeros(7)}, model / "model.safetensors")
    assert _gpu_cache(model, 10_000_000) == 8_500_000 - 2 * 500_007
    with pytest.raises(ConfigError, match="its weights take 0 MiB, but the engine's GPU has 0 MiB free"):
        _gpu_cache(model, 1_000_000)


def test_a_model_without_safetensors_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ConfigError, match="has no safetensors"):
        _folder(str(tmp_path))


def test_export_copies_the_model_alone(tmp_path: Path) -> None:
    checkpoint = tmp_path / "step_000003"
    (checkpoint / "trinity" / "actor").mkdir(parents=True)
    for name in ("trinity.json", "ajet.json", "files.json", "config.json", "model.safetensors"):
        (checkpoint / name).write_text(name)
    Trinity().export(checkpoint, tmp_path / "out", None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(ConfigError, match="out already exists"):
        Trinity().export(checkpoint, tmp_path / "out", None)
    with pytest.raises(AjetError, match=r"no trinity\.json"):
        Trinity().export(tmp_path, tmp_path / "other", None)


def test_workers_in_groups_of_their_own_end_with_the_learner(spool: Spool) -> None:
    started = spool.folder / "worker"
    code = (
        "import os, signal, subprocess, sys\n"
        "worker = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], process_group=0)\n"
        f"open({str(started)!r}, 'w').write(str(worker.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    learner = learner_of(spool, code)
    with pytest.raises(LearnerFailed):
        learner.wait_for(spool.report(1), "step 1 of Trinity")
    worker = int(started.read_text())
    assert os.getsid(worker) == learner.pid
    learner.close()
    assert _ended(worker)


def _ended(pid: int) -> bool:
    """Whether a process has ended, within a while: it may still be a zombie."""
    for _ in range(200):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
