"""Our backbones keep what every backbone promises; and the checks notice one that does not."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.interfaces.backbone import Capabilities, RunResult
from ajet.job.job import Backbone, Job
from ajet.plugins import load_plugins
from ajet.rollout.recorder import METRICS, live_lines
from ajet.testing import backbones as checks
from ajet.testing.backbones import BackboneSubject
from tests.tiers import fast, thinned

pytestmark = pytest.mark.e2e
SECTIONS: dict[str, dict[str, Any]] = {"local": {"threads": 1}, "debug": {"tasks": 2, "group_size": 2}}


@pytest.mark.parametrize("name", SECTIONS)
@thinned
def test_the_backbone(check_backbone: Any, name: str, tiny_model: Path, tmp_path: Path) -> None:
    check_backbone(name, model=str(tiny_model), folder=tmp_path, section=SECTIONS[name])


@pytest.mark.whole
@pytest.mark.parametrize("cut", [{"top_p": 0.6, "top_k": 40}, {"min_p": 0.95}])
def test_a_run_trains_the_probabilities_that_truncated_sampling_had(
    tiny_model: Path, tmp_path: Path, cut: dict[str, float]
) -> None:
    """Those of the trainer differ from the engine's by rounding in its first mini-batch; without the kept tokens, by their share."""
    subject = BackboneSubject("local", str(tiny_model), tmp_path, SECTIONS["local"])
    keys = {f"rollout.sampling.{name}": value for name, value in cut.items()}
    found = []
    for allowed in (False, True):
        run = subject.run({**keys, "rollout.sampling.allow_truncated": allowed, "train.steps": 1})
        lines = map(json.loads, (run.run_dir / "episodes.jsonl").read_text().splitlines())
        found += [(metrics_of(run)["logprob_diff_max"], mean_logprob(lines))]
    (exact, over_kept), (plain, over_all) = found
    assert exact < 1e-4 and plain < 1e-4
    assert over_kept > over_all + 0.01


@pytest.mark.whole
@pytest.mark.parametrize("then", [0.6, 1.0])
def test_a_resumed_run_samples_again_what_the_journal_has_no_kept_tokens_of(
    tiny_model: Path, tmp_path: Path, then: float
) -> None:
    subject = BackboneSubject("local", str(tiny_model), tmp_path, SECTIONS["local"])
    run = subject.run({"rollout.sampling.top_p": 0.6})
    assert run.checkpoint
    shutil.rmtree(run.checkpoint)  # as after a kill in the second step
    subject.run(resume=run.run_dir)
    assert (
        max(line["logprob_diff_max"] for line in live_lines(run.run_dir / METRICS) if line["type"] == "train")
        < 1e-4
    )


def metrics_of(run: RunResult) -> dict[str, float]:
    lines = [json.loads(line) for line in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    return next(line for line in lines if line["type"] == "train")


def mean_logprob(lines: Iterable[dict[str, Any]]) -> float:
    packed = [call["tokens"]["logprobs"] for line in lines for call in line["calls"]]
    return float(np.concatenate([np.frombuffer(base64.b64decode(p), "<f4") for p in packed]).mean())


class Faulty(Backbone):
    """The local backbone with something wrong."""

    name = "faulty"
    capabilities = Capabilities()

    def run(self, job: Job) -> RunResult:
        local: Any = load_plugins().get(Backbone, "local", "")
        return self.after(job, local(threads=1).run(job))

    def after(self, job: Job, result: RunResult) -> RunResult:
        return result


class PromisesMore(Faulty):
    capabilities = Capabilities(keys=frozenset({"train.kl"}))

    def after(self, job: Job, result: RunResult) -> RunResult:
        return RunResult(run_dir=result.run_dir, steps=0)


class TrainsWithoutARecord(Faulty):
    def after(self, job: Job, result: RunResult) -> RunResult:
        (result.run_dir / "episodes.jsonl").write_text("")
        return result


class KeepsNoState(Faulty):
    def after(self, job: Job, result: RunResult) -> RunResult:
        shutil.rmtree(result.run_dir / "checkpoints")
        return result


class BeginsAnew(Faulty):
    def run(self, job: Job) -> RunResult:
        from dataclasses import replace

        return super().run(replace(job, resume=None))


class DrawsAtRandom(Faulty):
    capabilities = Capabilities(deterministic=True)

    def run(self, job: Job) -> RunResult:
        from dataclasses import replace

        result = super().run(replace(job))
        with (result.run_dir / METRICS).open("a") as file:
            file.write(f'{{"type": "train", "step": 2, "at": "{result.run_dir.name}"}}\n')
        return result


@pytest.mark.whole
@pytest.mark.parametrize(
    ("fault", "check"),
    fast(
        {1},
        [
            (PromisesMore, checks.check_what_it_declares_is_honoured),
            (TrainsWithoutARecord, checks.check_the_run_folder_tells_what_happened),
            (KeepsNoState, checks.check_a_checkpoint_is_a_model),
            (BeginsAnew, checks.check_a_killed_run_goes_on_after_its_last_checkpoint),
            (DrawsAtRandom, checks.check_deterministic_runs_are_equal),
        ],
    ),
    ids=lambda given: given.__name__,
)
def test_a_faulty_backbone_is_noticed(
    fault: type[Backbone], check: Any, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ajet.plugins import InstalledPlugin

    classes = load_plugins().classes
    monkeypatch.setitem(
        classes, ("backbone", "faulty"), InstalledPlugin("backbone", "faulty", fault, "test", "0")
    )
    with pytest.raises(AssertionError):
        check(BackboneSubject("faulty", str(tiny_model), tmp_path))
