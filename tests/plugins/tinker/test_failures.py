"""What goes wrong is said in one line, and a run that ended early can be resumed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

import ajet
from ajet.interfaces.progress import Silent
from ajet.learning.settings import TrainSettings
from ajet.rollout.recorder import METRICS, live_lines
from ajet.testing.backbones import BackboneSubject
from ajet_tinker.backbone import Tinker, TinkerEnginePlugin
from ajet_tinker.saved import Saved
from tests.patience import PATIENCE
from tests.plugins.tinker.conftest import section_of, served


@pytest.fixture(scope="module")
def finished(base, folder, tmp_path_factory):
    """A service, and a run of two steps on it of which a test gets a copy."""
    with served(base[0]) as service:
        subject = BackboneSubject("tinker", str(folder), tmp_path_factory.mktemp("job"), section_of(service))
        yield service, subject, subject.run({"train.keep_last": 3})


@pytest.fixture
def copied(finished, tmp_path):
    """The folder of the finished run's copy, and its last checkpoint."""
    _, _, result = finished
    run_dir = shutil.copytree(result.run_dir, tmp_path / "copied")
    return run_dir, run_dir / result.checkpoint.relative_to(result.run_dir)


def error_of(subject, keys, kind=ajet.AjetError, **options):
    with pytest.raises(kind) as raised:
        subject.run(keys, **options)
    text = str(raised.value)
    assert "\n" not in text and text.endswith("."), text
    return text


def run_dir_of(subject):
    [found] = (subject.folder / "runs").iterdir()
    return found


def steps_in(run_dir):
    return [line["step"] for line in live_lines(run_dir / METRICS) if line["type"] == "train"]


# ------------------------------------------------------------------ before anything starts


def test_a_missing_key_is_named(subject, monkeypatch, service):
    monkeypatch.delenv("TINKER_API_KEY")
    assert "environment variable TINKER_API_KEY" in error_of(subject, {}, ajet.ConfigError)
    assert not (subject.folder / "runs").exists(), "there is no run folder of a run that could not begin"


def test_a_key_that_the_service_does_not_know_is_named(subject, monkeypatch, service):
    monkeypatch.setenv("TINKER_API_KEY", "tml-another")
    assert "does not accept the key in TINKER_API_KEY" in error_of(subject, {}, ajet.ConfigError)


def test_a_key_in_another_form_is_an_error_of_one_line(subject, monkeypatch, service):
    monkeypatch.setenv("TINKER_API_KEY", "sk-of-another-service")
    assert "must start with the 'tml-' prefix" in error_of(subject, {})


def test_an_unknown_model_is_named_with_the_nearest_one(subject, service):
    text = error_of(subject, {"backbone.tinker.base_model": "tiny/calculater"}, ajet.ConfigError)
    assert "'tiny/calculater'" in text and "tiny/calculator" in text


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "127.0.0.1", "http://[::1"])
def test_an_address_without_a_service_is_named(subject, service, address):
    text = error_of(subject, {"backbone.tinker.base_url": address})
    assert f"no service answers at {address} (" in text and "backbone.tinker.base_url" in text


@pytest.mark.whole
def test_a_service_that_does_not_answer_is_given_up_at_the_deadline(subject, service):
    service.silent.add("create_model")
    text = error_of(subject, {"backbone.tinker.timeout": "3s"})
    assert "creating a LoRA over tiny/calculator got no answer within 3 seconds" in text


@pytest.mark.parametrize("model", ["starter", "folder"])
def test_a_model_of_this_machine_needs_the_name_of_one_of_tinkers(model, folder, section):
    given = str(folder) if model == "folder" else model
    with pytest.raises(ajet.ConfigError, match=r"Tinker does not have it.*backbone.tinker.base_model"):
        Tinker(base_url=section["base_url"]).named(given, None)


@pytest.mark.parametrize(
    ("keys", "named"),
    [
        ({"rollout.sampling.temperature": 0.7}, "rollout.sampling.temperature"),
        ({"eval.sampling.min_p": 0.1}, "eval.sampling.min_p"),
        ({"train.algorithm": {"type": "needs_entropy.py:NeedsEntropy"}}, "train.algorithm: 'needs_entropy'"),
        ({"train.entropy": 0.1}, "train.entropy"),
        ({"targets.a.lora.rank": 2}, "targets.a.lora"),
        ({"run.deterministic": True}, "run.deterministic"),
        ({"run.restarts": 1}, "run.restarts"),
        (
            {
                "backbone.tinker.train_mlp": False,
                "backbone.tinker.train_attn": False,
                "backbone.tinker.train_unembed": False,
            },
            "nothing would be trained",
        ),
        ({"backbone.tinker.ranks": 2}, "rank"),
    ],
    ids=str,
)
def test_what_tinker_cannot_do_is_refused_by_name(subject, service, keys, named):
    (subject.folder / "needs_entropy.py").write_text(
        "from ajet.learning.algorithms import GRPO\n"
        "class NeedsEntropy(GRPO):\n    name = 'needs_entropy'\n    needs = frozenset({'entropy'})\n"
    )
    assert named in error_of(subject, keys, ajet.ConfigError)
    assert not service.calls, "nothing was asked of the service"


# ------------------------------------------------------------------ in the middle of a run


@pytest.mark.whole
def test_a_run_that_the_service_failed_is_resumed_after_its_last_checkpoint(subject, service):
    service.fail["optim_step", 2] = ("the cluster is restarting\nwith a long trace", "server")
    text = error_of(subject, {})
    assert (
        text == "Tinker: optim_step of mini-batch 1 of 1 failed: the cluster is restarting."
        and service.finished
    )
    assert service.finished[-1] == "errored"
    run_dir = run_dir_of(subject)
    assert steps_in(run_dir) == [1]
    assert subject.run({"train.steps": 3}, resume=run_dir).steps == 3
    assert steps_in(run_dir) == [1, 2, 3]


@pytest.mark.whole
def test_an_episode_whose_reply_failed_is_repeated(subject, service):
    service.fail["sample", 3] = ("a sampler was lost", "server")
    result = subject.run({"train.steps": 1})
    assert result.steps == 1 and steps_in(result.run_dir) == [1]
    assert service.calls["sample"] > 8, "four episodes have eight calls, and one was repeated"


@pytest.mark.whole
def test_a_gradient_that_failed_is_named(subject, service):
    service.fail["forward_backward", 1] = ("out of memory", "server")
    assert "forward_backward of mini-batch 1 of 1 failed: out of memory" in error_of(subject, {})


@pytest.mark.whole
def test_a_resumed_run_has_the_optimizer_state_of_its_checkpoint(finished):
    service, subject, result = finished
    checkpoint = result.checkpoint
    saved = Saved.read(checkpoint)
    _, _, moments = service.states[saved.state]
    trainer = Tinker(**subject.section).trainer(
        subject.model, TrainSettings(), seed=0, deterministic=False, progress=Silent()
    )
    try:
        trainer.load(checkpoint)
    finally:
        trainer.service.close()
    restored = list(service.runs.values())[-1].optimizer.state_dict()
    assert [float(state["step"]) for state in restored["state"].values()] == [
        float(state["step"]) for state in moments["state"].values()
    ]
    assert restored["state"] and trainer.version == saved.version == 2


@pytest.mark.whole
def test_an_answer_that_does_not_come_ends_the_run_at_the_deadline(subject, service):
    service.silent.add("optim_step")
    text = error_of(subject, {"backbone.tinker.timeout": 3})
    assert "optim_step of mini-batch 1 of 1 got no answer within 3 seconds (backbone.tinker.timeout)" in text


@pytest.mark.whole
def test_a_checkpoint_that_tinker_has_deleted_is_skipped(finished, copied, monkeypatch):
    service, subject, _ = finished
    run_dir, last = copied
    monkeypatch.delitem(service.states, Saved.read(last).state)
    assert subject.run(resume=run_dir).steps == 2 and steps_in(run_dir) == [1, 2]
    assert any("is damaged and is skipped" in line and "not found" in line for line in subject.said), (
        subject.said
    )


@pytest.mark.whole
def test_a_checkpoint_file_that_cannot_be_read_is_skipped(finished, copied):
    _, subject, _ = finished
    run_dir, last = copied
    file = last / "tinker.json"
    file.write_text(file.read_text().replace('"rank"', '"runk"'))
    subject.run(resume=run_dir)
    assert any("is damaged and is skipped" in line for line in subject.said), subject.said


@pytest.mark.whole
def test_keys_that_contradict_a_checkpoint_are_refused(finished):
    _, subject, result = finished
    checkpoint = str(result.checkpoint)
    text = error_of(subject, {"model": checkpoint, "backbone.tinker.rank": 8}, ajet.ConfigError)
    assert "backbone.tinker.rank" in text and "has rank 4" in text
    text = error_of(subject, {"model": checkpoint, "backbone.tinker.base_model": "other"}, ajet.ConfigError)
    assert "is a checkpoint of tiny/calculator" in text
    assert TinkerEnginePlugin.preferred(checkpoint) and not TinkerEnginePlugin.preferred("starter")


# ------------------------------------------------------------------ the program


def start(subject, *arguments):
    """The installed program on the job of `subject`."""
    (subject.folder / "job.yaml").write_text(
        json.dumps(subject._job() | {"run": {"dir": str(subject.folder / "runs")}})
    )
    program = [sys.executable, "-m", "ajet", "run", *arguments]
    return subprocess.Popen(
        program,
        cwd=subject.folder,
        env=os.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def until(process, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.e2e
def test_a_killed_run_is_resumed(subject, service):
    process = start(subject, "job.yaml", "--steps", "500")
    until(process, lambda: list(subject.folder.glob("runs/*/checkpoints/step_000002")))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    run_dir = run_dir_of(subject)
    done = steps_in(run_dir)[-1]
    resumed = start(subject, "--resume", str(run_dir), "--steps", str(done + 1))
    output = resumed.communicate(timeout=PATIENCE)[0]
    assert resumed.returncode == 0, output
    assert steps_in(run_dir) == list(range(1, done + 2))


@pytest.mark.whole
@pytest.mark.e2e
def test_ctrl_c_ends_a_run_that_waits_for_the_service(subject, service):
    process = start(subject, "job.yaml", "--steps", "500")
    until(process, lambda: list(subject.folder.glob("runs/*/checkpoints/step_*")))
    service.silent.add("optim_step")
    stepped = service.calls["optim_step"]
    until(process, lambda: service.calls["optim_step"] > stepped)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=PATIENCE)[0]
    assert "ajet run --resume" in output and "Traceback" not in output and "left behind" not in output, output
    assert service.finished == ["interrupted"]
    shutil.rmtree(subject.folder / "runs")
