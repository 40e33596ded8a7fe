"""The summary of a run: its figures by step, what failed, what broke, what to look at next."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.interfaces.backbone import Capabilities
from ajet.learning.collapse import train_again
from ajet.reports.labels import ago
from ajet.reports.progress import describe_ended, run_told
from ajet.reports.text import describe_run, sparkline
from ajet.rollout.failures import Failure
from ajet.rollout.recorder import RunRecorder
from ajet.tracker.breaks import CAUSES
from ajet.types import JudgeOutput

from .conftest import Folder, blank, squeezing


def judged(name: str, reward: float, **values: Any) -> Any:
    return blank(name, reward=reward, **values)


# ------------------------------------------------------------------ figures by step


def test_each_step_has_a_row_with_its_validation(folder: Folder) -> None:
    folder.write([])
    folder.metrics("validation", 0, reward=0.1, accuracy=0.2)
    folder.metrics("greedy", 0, reward=0.1, accuracy=0.3)
    folder.metrics("train", 1, reward=0.5, accuracy=0.4, groups_zero_advantage=0.25, episodes_failed=2)
    summary = folder.summary()
    first, second = summary.rows
    assert (first.step, first.reward, first.validation, first.greedy) == (0, None, 0.2, 0.3)
    assert (second.reward, second.accuracy, second.zero_advantage, second.failed) == (0.5, 0.4, 0.25, 2)
    assert summary.steps == 1 and summary.steps_wanted == 4
    table = describe_run(summary).split("\n\n")[1].splitlines()
    assert table[0].split() == [
        "step",
        "reward",
        "accuracy",
        "zero-adv",
        "failed",
        "validation",
        "accuracy",
        "greedy",
    ]
    assert table[2].split() == ["1", "0.500", "0.400", "25%", "2"]


def test_without_verdicts_a_validation_is_its_reward(folder: Folder) -> None:
    folder.write([])
    folder.metrics("validation", 0, reward=0.7)
    assert folder.summary().rows[0].validation == 0.7
    assert "validation reward" in describe_run(folder.summary())


@pytest.mark.whole
def test_many_steps_are_thinned_evenly_with_first_last_and_validations(folder: Folder) -> None:
    recorder = RunRecorder(folder.dir)
    for step in range(1, 1001):
        recorder.metrics("train", step, {"reward": step / 1000})
    for step in (37, 512):
        recorder.metrics("validation", step, {"reward": 0.5})
    recorder.close()
    summary = folder.summary()
    steps = [row.step for row in summary.rows]
    assert len(steps) == 20 and {1, 37, 512, 1000} <= set(steps)
    gaps = [b - a for a, b in pairwise(steps)]
    assert max(gaps) < 80
    assert len(summary.rewards) == 1000


def test_a_sparkline_shows_the_shape_and_fits_a_line() -> None:
    assert sparkline([0.0, 1.0]) == "▁█"
    assert sparkline([2.0, 2.0, 2.0]) == "▁▁▁"
    long = sparkline([float(i) for i in range(1000)])
    assert len(long) == 40 and long == "".join(sorted(long))


def test_superseded_figures_are_not_shown(folder: Folder) -> None:
    recorder = RunRecorder(folder.dir)
    recorder.metrics("train", 1, {"reward": 0.1})
    recorder.metrics("train", 2, {"reward": 0.2})
    recorder.supersede(2, {})
    recorder.metrics("train", 2, {"reward": 0.9})
    recorder.close()
    assert folder.summary().rewards == (0.1, 0.9)


# ------------------------------------------------------------------ what happened


def test_failures_are_counted_by_cause_with_the_latest_told(folder: Folder) -> None:
    folder.write(
        [
            blank("1.0/a/0", failed=Failure.parse("timeout", "no result within 3 s")),
            blank("1.0/a/1", failed=Failure.parse("workflow:KeyError", "KeyError: 'x'")),
            blank("1.0/a/2", failed=Failure.parse("workflow:KeyError", "KeyError: 'y'\nin agent.py")),
        ]
    )
    first, second = folder.summary().failures
    assert (first.name, first.count, first.about) == (
        "workflow:KeyError",
        2,
        "1.0/a/2: KeyError: 'y' in agent.py",
    )
    assert (second.name, second.count) == ("timeout", 1)


def test_counters_come_with_their_meaning_and_zeros_are_left_out(folder: Folder) -> None:
    counts = Counter({"overridden:top_p": 3, "malformed_tool_calls": 1, "drift": 0})
    folder.write([blank("1.0/a/0", counters=counts)])
    shown = {c.name: c for c in folder.summary().counters}
    assert set(shown) == {"overridden:top_p", "malformed_tool_calls"}
    assert "rollout.sampling" in shown["overridden:top_p"].about


def test_breaks_are_counted_by_cause_with_their_remedy(folder: Folder, live: Any) -> None:
    folder.write(live(squeezing, lambda r, p: "one  two", group_size=2))
    (broken,) = folder.summary().breaks
    assert (broken.name, broken.count) == ("whitespace changed", 2)
    assert broken.about == CAUSES["whitespace changed"]
    assert broken.about in describe_run(folder.summary())


@pytest.mark.whole
def test_the_share_of_groups_without_advantage_is_counted_from_the_journal(folder: Folder, live: Any) -> None:
    folder.write(live(group_size=2, tasks=2))
    folder.write(live(group_size=2, judge=lambda task, output: 0.5), step=2)
    summary = folder.summary()
    assert (summary.groups_zero_advantage, summary.groups) == (1, 3)
    assert "groups with zero advantage (nothing to learn): 1 of 3, 33%" in describe_run(summary)


def test_an_algorithm_that_is_not_installed_here_is_noted_not_fatal(folder: Folder, live: Any) -> None:
    path = folder.dir / "job.yaml"
    path.write_text(path.read_text().replace("grpo", "gone"))
    folder.write(live(group_size=2))
    summary = folder.summary()
    assert summary.groups == 0 and "unknown algorithm 'gone'" in summary.notes[0]
    assert folder.report("1.0/t0/1").header.advantages == {}


def test_a_folder_without_its_job_is_shown_all_the_same(folder: Folder) -> None:
    (folder.dir / "job.yaml").unlink()
    folder.write([blank("1.0/a/0")])
    summary = folder.summary()
    assert summary.model == "" and "\njob " not in describe_run(summary) and "no job.yaml" in summary.notes[0]


# ------------------------------------------------------------------ what to look at


def test_the_episodes_to_look_at_are_best_worst_failed_broken_and_longest(folder: Folder, live: Any) -> None:
    folder.write(live(squeezing, lambda r, p: "one  two", tasks=1))
    folder.write([judged(f"2.0/a/{m}", float(m)) for m in range(3)], step=2)
    folder.write([blank("2.0/a/9", failed=Failure.parse("timeout", "slow"))], step=2)
    picks = {pick.id: pick.why for pick in folder.summary().picks}
    assert picks["2.0/a/2"] == "best reward: 2 at step 2"
    assert picks["2.0/a/0"] == "worst reward: 0 at step 2"
    assert picks["2.0/a/9"] == "failed: timeout"
    assert picks["1.0/t0/0"].startswith("breaks: 1 whitespace changed; longest: ")
    assert f"ajet show {folder.dir} 2.0/a/2" in describe_run(folder.summary())


def test_an_id_with_spaces_is_quoted_for_the_shell(folder: Folder) -> None:
    folder.write([judged("1.0/my task/0", 1.0)])
    assert f"ajet show {folder.dir} '1.0/my task/0'" in describe_run(folder.summary())


def test_a_run_without_episodes_says_so(folder: Folder) -> None:
    text = describe_run(folder.write([]).summary())
    assert "none has ended yet" in text and "look at" not in text


def test_times_are_told_in_the_largest_fitting_unit() -> None:
    assert [ago(s) for s in (5, 119, 120, 7200, 200_000)] == ["5 s", "119 s", "2 min", "2 h", "2 days"]


def test_a_group_whose_calls_have_different_rewards_has_something_to_learn(folder: Folder, live: Any) -> None:
    def judge(task: Any, output: Any, episode: Any) -> JudgeOutput:
        return JudgeOutput(0.5, call_rewards={0: 0.1 * episode.member})

    folder.write(live(group_size=2, judge=judge))
    assert (folder.summary().groups_zero_advantage, folder.summary().groups) == (0, 1)


def test_printed_commands_name_folders_with_spaces_so_that_a_shell_takes_them(tmp_path: Path) -> None:
    run = tmp_path / "odd dir #1"
    (run / "checkpoints" / "step_000001").mkdir(parents=True)
    told = describe_ended("interrupted", run, without_checkpoint=True)
    assert shlex.split(told.partition("resume with: ")[2]) == ["ajet", "run", "--resume", str(run)]
    assert f"--model '{run}')" in train_again(run, None)


@pytest.mark.parametrize("trains", [True, False])
def test_a_training_that_is_interrupted_before_its_first_checkpoint_is_told_how_it_goes_on(
    trains: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(job: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ajet.runs.restarts.run_job", interrupted)
    job: Any = SimpleNamespace(backbone=SimpleNamespace(capabilities=Capabilities(trains=trains)))
    progress: Any = SimpleNamespace(run_dir=tmp_path, keep=lambda text: None)
    with pytest.raises(KeyboardInterrupt) as told:
        run_told(job, progress)
    assert str(told.value).endswith(
        f"resume with: ajet run --resume {tmp_path}" if trains else "no checkpoint yet"
    )
