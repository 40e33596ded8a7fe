"""`ajet bisect` finds the checkpoint that first fails a check, and the episodes that were rewarded for it."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet.cli import run_program
from ajet.testing import ScriptedEngine
from ajet_rejudge import api, bisecting
from ajet_rejudge.bisecting import Bisection, Enough, Rates, search
from ajet_rejudge.sequential import Sprt, first_showing
from tests.plugins.rejudge.conftest import MakeRun, fixed


@pytest.mark.parametrize("count", [1, 2, 3, 10, 16, 63])
def test_every_first_checkpoint_is_found_with_at_most_log2_and_2_evaluations(count: int) -> None:
    for first in [None, *range(count + 1)]:
        asked: list[int] = []

        def shows(number: int, first: int | None = first, asked: list[int] = asked) -> bool:
            asked.append(number)
            return first is not None and number >= first

        assert first_showing(count, shows) == first
        assert len(set(asked)) == len(asked) <= math.log2(count) + 2


@pytest.mark.parametrize(("share", "wrong"), [(0.1, True), (0.5, False)])
def test_the_test_of_a_checkpoint_keeps_its_error_rate(share: float, wrong: bool) -> None:
    chance, errors, used = random.Random(0), 0, 0
    for _ in range(1000):
        test, decided = Sprt(0.1, 0.5, 0.05), None
        while decided is None:
            decided, used = test.add(chance.random() < share), used + 1
        errors += decided is wrong
    assert errors / 1000 <= 0.05 and used / 1000 < 12


def found_by(steps: Sequence[int], shares: Sequence[float], seed: int, **rates: Any) -> Bisection:
    """Bisect checkpoints of these steps that fail in these shares of their episodes; the first share is that of the model before."""
    chance = random.Random(seed)

    def ask(step: int, enough: Enough) -> None:
        share = shares[[0, *steps].index(step)]
        while not enough([chance.random() < share for _ in range(8)]):
            pass

    found = Bisection(Path("run"), "t", "must pass", Rates(**rates), Path("bisect"))
    search(found, steps, ask, lambda text: None)
    return found


def test_nine_of_ten_planted_regressions_are_found() -> None:
    steps, right = range(5, 85, 5), 0
    for seed in range(20):
        first = random.Random(seed).randrange(16)
        found = found_by(steps, [0.05] * (first + 1) + [0.6] * (16 - first), seed)
        right += found.steps == (5 * first, 5 * first + 5)
        assert len(found.evaluated) <= math.log2(16) + 2
        assert sum(each.episodes for each in found.evaluated) <= 120
    assert right >= 18


@pytest.mark.parametrize("checkpoints", [1, 16])
def test_of_models_that_are_just_rare_and_just_often_as_many_bisections_are_right_as_it_says(
    checkpoints: int,
) -> None:
    steps, wrong = range(1, checkpoints + 1), 0
    for seed in range(200):
        first = random.Random(seed).randrange(checkpoints + 1)
        shares = [0.1] * (first + 1) + [0.5] * (checkpoints - first)
        expected = (first, first + 1) if first < checkpoints else None
        wrong += found_by(steps, shares, seed).steps != expected
    assert wrong / 200 <= 0.05


def test_a_behaviour_that_was_there_before_or_never_came_has_no_steps() -> None:
    before, never = found_by([1, 2, 3], [1.0] * 4, 0), found_by([1, 2, 3], [0.0] * 4, 0)
    assert before.steps is None and "the model before the training shows it, too" in before.notes[0]
    assert never.steps is None and [each.step for each in never.evaluated] == [3]


def test_a_share_between_rare_and_often_is_not_certain() -> None:
    found = found_by([1], [0.0, 0.3], 3, error=1e-6, episodes=16)
    assert found.evaluated[0].episodes == 16
    assert found.notes[-1].startswith("not certain after 16 episodes: step 1")


def test_a_model_whose_episodes_all_fail_is_an_error() -> None:
    def ask(step: int, enough: Enough) -> None:
        while not enough([None] * 8):
            pass

    found = Bisection(Path("run"), "t", "must pass", Rates(), Path("bisect"))
    with pytest.raises(ajet.AjetError, match="step 1: all 64 episodes failed"):
        search(found, [1], ask, lambda text: None)


@pytest.fixture
def trained(
    recorded: MakeRun, monkeypatch: pytest.MonkeyPatch, saved_tokenizer: Path, tokenizer: Any
) -> Path:
    """A run of 4 steps whose checkpoints say "not right" from step 2 on; what the models say is scripted."""

    def answering(job: Any) -> ScriptedEngine:
        name = Path(job.model).name
        late = name.startswith("step_") and int(name.removeprefix("step_")) >= 2
        return ScriptedEngine(tokenizer, lambda request, prompt: "not right" if late else "right")

    monkeypatch.setattr(bisecting, "answering_engine", answering)
    folder = recorded(steps=4)
    job = json.loads((folder / "job.yaml").read_text())
    job |= {"workflow": str(Path(__file__).with_name("conftest.py")) + ":once", "model": str(saved_tokenizer)}
    job["task"] = {"reader": str(folder / "tasks.jsonl")}
    job["run"]["dir"] = str(folder.parent / "runs")
    (folder / "job.yaml").write_text(json.dumps(job))
    return folder


@pytest.mark.whole
def test_the_step_and_the_episodes_that_were_rewarded_are_named(trained: Path) -> None:
    task = ajet.load_run(trained).episodes()[0].task
    found = ajet.bisect(trained, task, must_not="not right", progress=False)
    assert found.steps == (1, 2)
    assert [name.rpartition("/")[2] for name in found.episodes] == ["2", "2"], "member 2 of both groups"
    assert all(name.startswith("2.") for name in found.episodes)
    assert "taught by step 2" in str(found) and "10% or at least 50%" in str(found)
    assert ajet.bisect(trained, task, fixed, progress=False).steps == (1, 2)
    assert ajet.bisect(trained, task, must="right", progress=False).steps is None


@pytest.mark.whole
def test_without_all_checkpoints_the_interval_is_named(trained: Path) -> None:
    for step in (1, 2):
        shutil.rmtree(trained / "checkpoints" / f"step_{step:06d}")
    task = ajet.load_run(trained).episodes()[0].task
    found = ajet.bisect(trained, task, must_not="not right", progress=False)
    assert found.steps == (0, 3) and "the steps 1 to 3, between which no checkpoint is" in str(found)
    assert {name.split(".")[0] for name in found.episodes} == {"2", "3"}


@pytest.mark.whole
def test_without_the_credit_of_the_episodes_it_names_the_steps_alone(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bisecting, "crediting", lambda *args: "their values are not in the journal")
    task = ajet.load_run(trained).episodes()[0].task
    found = ajet.bisect(trained, task, must_not="not right", progress=False)
    assert found.steps == (1, 2) and "which episodes were rewarded is not known: their values" in str(found)
    assert "none of" not in str(found)


@pytest.mark.whole
def test_a_task_of_which_the_journal_has_the_id_alone_is_one_of_the_jobs_tasks(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = ajet.load_run(trained).episodes()[0].task
    (trained / "tasks.jsonl").write_text(json.dumps({"id": task, "query": "a"}) + "\n")
    monkeypatch.setattr(api, "recorded_task", lambda run, name: ajet.Task(task))
    assert ajet.bisect(trained, task[:-1], must_not="not right", progress=False).steps == (1, 2)
    monkeypatch.setattr(api, "recorded_task", lambda run, name: ajet.Task("gone"))
    with pytest.raises(ajet.ConfigError, match="only the id of gone"):
        ajet.bisect(trained, "gone", must_not="not right", progress=False)


@pytest.mark.whole
def test_the_command_prints_the_page_or_json(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = ajet.load_run(trained).episodes()[0].task
    assert run_program(["bisect", str(trained), task, "--must-not", "not right", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == [1, 2]


@pytest.mark.whole
def test_what_is_no_case_is_refused(trained: Path) -> None:
    task = ajet.load_run(trained).episodes()[0].task
    with pytest.raises(ajet.ConfigError, match="name one"):
        ajet.bisect(trained, task, fixed, must="x", progress=False)
    with pytest.raises(ajet.ConfigError, match="no such task"):
        ajet.bisect(trained, "nowhere", fixed, progress=False)
    with pytest.raises(ajet.ConfigError, match="tasks have this in their id"):
        ajet.bisect(trained, "t", fixed, progress=False)
    with pytest.raises(ajet.ConfigError, match="shares between 0 and 1"):
        ajet.bisect(trained, task, fixed, rare=0.5, often=0.1, progress=False)
    (trained / "checkpoints").rename(trained / "gone")
    with pytest.raises(ajet.ConfigError, match="has no checkpoint"):
        ajet.bisect(trained, task, fixed, progress=False)


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a journal cut off": (lambda run: cut(run / "episodes.jsonl", -300), "taught by step 2"),
    "an empty journal": (lambda run: cut(run / "episodes.jsonl", 0), "no episode has been recorded"),
    "half a journal": (lambda run: cut(run / "episodes.jsonl", 90_000), "taught by step 2"),
    "no metrics": (lambda run: (run / "metrics.jsonl").unlink(), "taught by step 2"),
    "no batches": (lambda run: shutil.rmtree(run / "batches"), "taught by step 2"),
    "a file in place of checkpoints": (lambda run: replaced(run / "checkpoints"), "has no checkpoint"),
    "a file in place of a checkpoint": (lambda run: replaced(step_of(run, 2)), "taught by the steps 2 to 3"),
    "a link in place of a checkpoint": (
        lambda run: (
            replaced(step_of(run, 2)),
            step_of(run, 2).unlink(),
            step_of(run, 2).symlink_to("nowhere"),
        ),
        "taught by the steps 2 to 3",
    ),
    "an empty checkpoint": (
        lambda run: [f.unlink() for f in step_of(run, 2).iterdir()],
        "taught by the steps 2 to 3",
    ),
    "a list of files that is odd": (
        lambda run: (step_of(run, 2) / "files.json").write_text('{"model.safetensors": {}}'),
        "taught by the steps 2 to 3",
    ),
    "another step": (
        lambda run: (step_of(run, 2) / "ajet.json").write_text('{"step": 1e999}'),
        "taught by the steps 2 to 3",
    ),
}


def step_of(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step_{step:06d}"


def cut(file: Path, at: int) -> None:
    file.write_bytes(file.read_bytes()[:at])


def replaced(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("x")


@pytest.mark.whole
def test_of_a_damaged_run_folder_it_says_what_is_left(trained: Path, tmp_path: Path) -> None:
    task = ajet.load_run(trained).episodes()[0].task
    for number, (damage, (done, said)) in enumerate(DAMAGES.items()):
        copy = tmp_path / f"damaged{number}"
        shutil.copytree(trained, copy)
        done(copy)
        try:
            text = str(ajet.bisect(copy, task, must_not="not right", progress=False))
        except ajet.AjetError as error:
            text = str(error)
        assert said in text, f"{damage}: {text}"
