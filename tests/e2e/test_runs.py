"""Runs as a user starts them: repeatable bit for bit, resumable after a kill, exact to the token."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL, METRICS, PASS_RATES, live_lines
from tests.e2e.conftest import EPISODES, STEPS, Project
from tests.patience import PATIENCE
from tests.plugins.local.test_recurrent import tiny
from tests.tiers import fast

pytestmark = pytest.mark.e2e


def weights(run_dir: Path) -> dict[str, bytes]:
    """Weights and optimizer state of the last checkpoint, as bytes."""
    import torch
    from safetensors.numpy import load_file

    last = checkpoints(run_dir)[-1]
    arrays = {
        f"{file.relative_to(last)}:{name}": array.tobytes()
        for file in last.rglob("*.safetensors")
        for name, array in load_file(file).items()
    }
    assert arrays
    optimizers = torch.load(last / "trainer.pt", weights_only=True)["optimizers"]
    moments = {
        f"{name}.{i}.{k}": v.numpy().tobytes()
        for name, optimizer in optimizers.items()
        for i, s in optimizer["state"].items()
        for k, v in s.items()
    }
    return arrays | moments


def story(run_dir: Path) -> list[Any]:
    """What happened, without times."""

    def timeless(record: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in record.items() if k not in ("started", "seconds")}

    lines = [timeless(line) for line in live_lines(run_dir / JOURNAL)]
    return sorted(
        json.dumps({**line, "calls": [timeless(call) for call in line["calls"]]}, sort_keys=True)
        for line in lines
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The folder of a run that nothing disturbed."""
    project = Project(tmp_path_factory.mktemp("whole"), tiny_model)
    project.ajet("run", "job.yaml", "--set", "run.dir=whole")
    return project.runs("whole")[0]


def kill_and_resume(project: Any, rng: random.Random, name: str, *options: str) -> Path:
    """A run that is killed once at a random episode, then resumed to its end."""
    for attempt in range(20):
        if killed(project, rng, f"{name}-{attempt}", *options):
            (run_dir,) = project.runs(f"{name}-{attempt}")
            assert "did not shut down" in project.ajet("run", "--resume", str(run_dir))
            project.ajet("audit", str(run_dir))
            return run_dir
    pytest.fail("all runs ended before they were killed")


def killed(project: Any, rng: random.Random, name: str, *options: str) -> bool:
    """Start a run and kill it at a random episode. False if it ended before that, as it may on a busy machine."""
    process = project.start("run", "job.yaml", "--set", f"run.dir={name}", *options)
    enough = rng.randrange(STEPS * EPISODES)
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        journals = list((project.folder / name).glob(f"*/{JOURNAL}"))
        if journals and journals[0].read_bytes().count(b"\n") >= enough:
            time.sleep(rng.random() * 0.2)
            break
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode in (0, -signal.SIGKILL), output
    return bool(process.returncode)


def check_kills(project: Any, whole: Path, kills: int) -> None:
    rng = random.Random(7)
    for n in range(kills):
        run_dir = kill_and_resume(project, rng, f"killed{n}")
        assert weights(run_dir) == weights(whole), f"kill {n}: the weights differ"
        assert story(run_dir) == story(whole), f"kill {n}: the journals differ"


@pytest.mark.whole
def test_killed_runs_end_bit_equal_to_the_uninterrupted_one(project, whole) -> None:
    check_kills(project, whole, 1)


BY_DIFFICULTY = ("--judge", "agent.py:share", "--set", "task.selector=difficulty")


@pytest.mark.whole
def test_a_resumed_run_selects_tasks_by_difficulty_as_an_uninterrupted_one(project) -> None:
    project.ajet("run", "job.yaml", "--set", "run.dir=selected", *BY_DIFFICULTY)
    project.ajet("run", "job.yaml", "--set", "run.dir=part", "--steps", "3", *BY_DIFFICULTY)
    (whole,), (part,) = project.runs("selected"), project.runs("part")
    # As after a kill in the third step: its checkpoint is missing, what it showed of its tasks is there.
    shutil.rmtree(checkpoints(part)[-1])
    project.ajet("run", "--resume", str(part), "--steps", str(STEPS))
    assert weights(part) == weights(whole) and story(part) == story(whole)
    assert live_lines(part / PASS_RATES) == live_lines(whole / PASS_RATES)
    metrics = [m for m in live_lines(part / METRICS) if m["type"] == "train"]
    assert [m["selector/pass_rate"] for m in metrics] == pytest.approx([m["reward"] for m in metrics])
    assert metrics[0]["selector/expected_pass_rate"] == 0.5 != metrics[-1]["selector/expected_pass_rate"]


FORKS = ("--set", "rollout.fork.roots=2", "--set", "train.credit=tree")


@pytest.mark.whole
def test_a_killed_run_with_forks_ends_bit_equal_to_an_uninterrupted_one(project) -> None:
    project.ajet("run", "job.yaml", "--set", "run.dir=forked", *FORKS)
    (whole,) = project.runs("forked")
    forks = [line["fork"] for line in live_lines(whole / JOURNAL) if "fork" in line]
    assert len(forks) >= 2 * STEPS and {fork["calls"] for fork in forks} == {1}
    run_dir = kill_and_resume(project, random.Random(3), "forks", *FORKS)
    assert weights(run_dir) == weights(whole) and story(run_dir) == story(whole)


STEERED = (
    *("--judge", "agent.py:share", "--set", "train.batch_size=6"),
    *("--set", "rollout.steer.band=[0.001, 0.002]", "--set", "rollout.steer.whole=0.2"),
)


@pytest.mark.whole
def test_a_killed_run_with_steered_groups_ends_bit_equal_to_an_uninterrupted_one(project) -> None:
    project.ajet("run", "job.yaml", "--set", "run.dir=steered", *STEERED)
    (whole,) = project.runs("steered")
    project.ajet("audit", str(whole))
    steered = [line["fork"] for line in live_lines(whole / JOURNAL) if "fork" in line]
    assert steered and all(fork["steered"] and fork["calls"] == 1 for fork in steered)
    run_dir = kill_and_resume(project, random.Random(2), "steers", *STEERED)
    assert weights(run_dir) == weights(whole) and story(run_dir) == story(whole)


@pytest.mark.whole
@pytest.mark.parametrize("kind", fast({0}, ["qwen3_5_text", "nemotron_h"]))
def test_a_killed_run_of_a_model_with_states_ends_bit_equal_to_an_uninterrupted_one(
    kind: str, tmp_path: Path, tokenizer: Any
) -> None:
    model = tiny(kind, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    project = Project(tmp_path, tmp_path / "model")
    try:
        project.ajet("run", "job.yaml", "--set", "run.dir=whole")
        (whole,) = project.runs("whole")
        run_dir = kill_and_resume(project, random.Random(5), "killed")
        assert weights(run_dir) == weights(whole) and story(run_dir) == story(whole)
    finally:
        project.end()


@pytest.mark.slow
def test_twenty_killed_runs_end_bit_equal(project, whole) -> None:
    check_kills(project, whole, 20)


ASYNCHRONOUS = ("--no-deterministic", "--set", "train.asynchronous=true")


def check_asynchronous_kills(project: Any, kills: int) -> None:
    rng = random.Random(11)
    for n in range(kills):
        run_dir = kill_and_resume(project, rng, f"asynchronous{n}", *ASYNCHRONOUS)
        trained_once(run_dir)


def trained_once(run_dir: Path) -> None:
    """Each step of the final weights' history learned from its own episodes, each of them once."""
    metrics = [m for m in live_lines(run_dir / METRICS) if m["type"] == "train"]
    assert [m["step"] for m in metrics] == list(range(1, STEPS + 1))
    episodes = [line for line in live_lines(run_dir / JOURNAL) if line["phase"] == "train"]
    ids = [line["id"] for line in episodes]
    assert len(ids) == len(set(ids)) == STEPS * EPISODES
    for m in metrics:
        assert m["tokens_trained"] + m["tokens_zero_advantage"] == m["tokens_sampled"] > 0
        assert m["weight_version"] == m["step"]


@pytest.mark.slow
def test_killed_asynchronous_runs_train_each_episode_once(project) -> None:
    check_asynchronous_kills(project, 1)


@pytest.mark.slow
def test_twenty_killed_asynchronous_runs_train_each_episode_once(project) -> None:
    check_asynchronous_kills(project, 20)


@pytest.mark.whole
def test_asynchronous_runs_sample_beside_the_update_at_most_one_version_behind(project) -> None:
    project.ajet(
        "run", "job.yaml", "--set", "run.dir=beside", "--set", "train.max_staleness=1", *ASYNCHRONOUS
    )
    (run_dir,) = project.runs("beside")
    trained_once(run_dir)
    staleness = [m["staleness"] for m in live_lines(run_dir / METRICS) if m["type"] == "train"]
    assert staleness[0] == 0 and max(staleness) == 1


@pytest.mark.kept
def test_every_sampled_token_is_trained_once_and_rescoring_gives_its_logprob(project, whole) -> None:
    metrics = [m for m in live_lines(whole / METRICS) if m["type"] == "train"]
    assert [m["step"] for m in metrics] == list(range(1, STEPS + 1))
    for m in metrics:
        assert m["tokens_trained"] + m["tokens_zero_advantage"] == m["tokens_sampled"] > 0
        assert m["logprob_diff_max"] < 1e-3


@pytest.mark.kept
def test_constant_rewards_leave_every_weight_as_it_was(project, tiny_model) -> None:
    from safetensors.numpy import load_file

    project.ajet(
        "run", "job.yaml", "--judge", "agent.py:constant", "--steps", "1", "--set", "run.dir=constant"
    )
    (run_dir,) = project.runs("constant")
    before, after = (
        load_file(tiny_model / "model.safetensors"),
        load_file(checkpoints(run_dir)[-1] / "model.safetensors"),
    )
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.slow
def test_resuming_an_undeterministic_run_reuses_finished_episodes_and_trains_none_twice(project) -> None:
    project.ajet("run", "job.yaml", "--no-deterministic", "--steps", "2", "--set", "run.dir=part")
    (run_dir,) = project.runs("part")
    # As after a kill in the second step: its checkpoint is missing, its episodes are there.
    shutil.rmtree(checkpoints(run_dir)[-1])
    output = project.ajet("run", "--resume", str(run_dir), "--steps", "3")
    assert "6 finished episodes of the next step can be reused" in output
    ids = [line["id"] for line in live_lines(run_dir / JOURNAL)]
    assert len(ids) == len(set(ids)) == 3 * EPISODES
    reused = {m["step"]: m.get("episodes_reused", 0) for m in live_lines(run_dir / METRICS)}
    assert reused == {1: 0, 2: 6, 3: 0}


@pytest.mark.slow
def test_ctrl_c_keeps_the_last_checkpoint_and_leaves_no_process(project) -> None:
    process = project.start("run", "job.yaml", "--steps", "500", "--set", "run.dir=stopped")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not list((project.folder / "stopped").glob("*/checkpoints/step_*")):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130 and "Traceback" not in output, output
    (run_dir,) = project.runs("stopped")
    assert str(run_dir) in output and "--resume" in output
    assert checkpoints(run_dir) and not list((run_dir / "checkpoints").glob(".partial*"))


@pytest.mark.whole
def test_a_checkpoint_loads_in_transformers_and_evaluates_alone(project, whole) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    last = checkpoints(whole)[-1]
    assert (
        len(AutoTokenizer.from_pretrained(last))
        == AutoModelForCausalLM.from_pretrained(last).config.vocab_size
    )
    output = project.ajet("eval", "job.yaml", "--model", str(last), "--json")
    assert json.loads(output.splitlines()[-1])["episodes"] == 6
    step = int(last.name.removeprefix("step_"))
    assert f"validation after step {step}: " in output and step > 0
