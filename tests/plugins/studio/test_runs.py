"""Runs, curves, steps and logs, of a run that really trained."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path

import pytest
import yaml

import ajet

from . import runs


def test_the_list_shows_what_a_run_was_and_what_became_of_it(studio: runs.Studio, trained: Path) -> None:
    found = studio.get("runs")
    assert found["folder"] == str(trained.parent)
    (row,) = found["runs"]
    assert row["run"] == row["name"] == trained.name
    assert row["state"] == "finished"
    assert (row["backbone"], row["algorithm"], row["steps"]) == ("local", "grpo", 2)
    assert row["episodes"] == 2 * 6 + 3  # two steps, three validations
    assert row["reward"] == 0.5
    assert row["validation_before"] is not None and row["validation_after"] is not None
    assert row["started"].startswith(f"{trained.name[:4]}-{trained.name[4:6]}-{trained.name[6:8]}T")


def test_a_run_has_its_settings_metrics_and_counters_with_explanations(
    studio: runs.Studio, trained: Path
) -> None:
    found = studio.get("run", run=trained.name)
    assert found["phases"]["train"] == {"steps": 2, "episodes": 12}
    assert found["settings"]["rollout.group_size"] == 3
    grad_norm = found["metrics"]["grad_norm"]
    assert grad_norm["explanation"] == "norm of the gradient before clipping"
    assert grad_norm["last"] == {"train": studio.get("steps", run=trained.name)["rows"][-1]["grad_norm"]}
    assert found["checkpoints"][-1] | {"path": "", "validation_reward": 0} == {
        "step": 2, "path": "", "validation_reward": 0, "exists": True
    }  # fmt: skip
    assert found["problems"] == []
    assert found["indexed"] == 1


def test_a_counter_names_the_last_episode_that_counted_it(own: runs.Studio, folder: Path) -> None:
    counted = [{"drift": 1}, {"cut_calls": 2, "drift": 1}, {"drift": 1}, {"cut_calls": 0, "drift": 0}]
    runs.append(folder / "a", *(runs.line(f"1.{n}/t/0", counters=c) for n, c in enumerate(counted)))
    found = own.get("run", run="a")["counters"]
    assert {name: (c["value"], c["episode"]) for name, c in found.items()} == {
        "drift": (3, "1.2/t/0"),
        "cut_calls": (2, "1.1/t/0"),
    }


def test_a_folder_that_is_a_run_is_the_run_with_the_id_dot(trained: Path) -> None:
    with runs.serving(trained) as studio:
        assert [row["run"] for row in studio.get("runs")["runs"]] == ["."]
        assert studio.get("run", run=".")["name"] == trained.name


def test_runs_in_folders_below_are_found(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "sweep" / "a", runs.line("1.0/t/0"))
    runs.append(folder / "b", runs.line("1.0/t/0"))
    assert {row["run"] for row in own.get("runs")["runs"]} == {"sweep/a", "b"}
    assert own.get("episodes", run="sweep/a")["total"] == 1


def test_a_copied_run_keeps_the_times_of_its_episodes(own: runs.Studio, folder: Path) -> None:
    began = 1_790_000_000.0
    lines = [runs.line(f"{n}.0/t/0", step=n, started=began + 60 * n, seconds=2.5) for n in range(1, 4)]
    copy = folder / "20260101-000000"  # by the clock of another machine
    runs.append(copy, json.dumps({"type": "replaced", "ids": []}) + "\n", *lines, lines[0][:50])
    (row,) = own.get("runs")["runs"]
    assert datetime.fromisoformat(row["started"]).timestamp() == began + 60
    assert row["seconds"] == 122.5
    runs.append(folder / "old", runs.line("1.0/t/0"))
    (row,) = (row for row in own.get("runs")["runs"] if row["run"] == "old")
    assert (row["started"], row["seconds"]) == ("", None)


def test_a_run_that_goes_on_says_which_alarms_it_has(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    lines = [
        {"type": "train", "step": 1, "reward": 0.5},
        {"type": "train", "step": 2, "alarm/repetition": 1.0},
    ]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = own.get("run", run="a")
    assert found["problem"].startswith("alarms: repetition; ajet show ")
    assert found["metrics"]["alarm/repetition"]["explanation"]


def test_a_row_has_what_tells_runs_of_a_sweep_apart(own: runs.Studio, folder: Path) -> None:
    (folder / "a").mkdir()
    job = {
        "run": {"name": "sums, fast", "tags": ["sweep"]},
        "train": {"steps": 3, "learning_rate": 0.004, "algorithm": {"type": "dapo"}},
        "backbone": {"name": "local"},
        "model": "starter",
    }
    (folder / "a" / "job.yaml").write_text(yaml.safe_dump(job))
    lines = [{"type": "train", "step": n, "reward": n / 4, "learning_rate": 0.001} for n in range(1, 4)]
    lines += [{"type": "validation", "step": n, "accuracy": 0.2 + n / 10} for n in (0, 3)]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = own.get("runs")["runs"]
    assert (row["name"], row["folder"], row["tags"]) == ("sums, fast", "a", ["sweep"])
    assert (row["learning_rate"], row["algorithm"], row["model"]) == (0.004, "dapo", "starter")
    assert row["rewards"] == [0.25, 0.5, 0.75]
    assert row["gain"] == pytest.approx(0.3)
    for damaged in ({"run": {"name": ["x"], "tags": 3}, "train": {"learning_rate": "x"}}, {"run": "x"}):
        (folder / "a" / "job.yaml").write_text(yaml.safe_dump(damaged))
        assert len(own.get("runs")["runs"]) == 1


def test_a_gain_is_that_of_one_figure(own: runs.Studio, folder: Path) -> None:
    """Where only some validations have a verdict of success, the rewards of the others are not compared with it."""
    (folder / "a").mkdir()
    said = [
        (0, {"reward": 0.3}),
        (3, {"reward": 0.4, "accuracy": 0.5}),
        (6, {"reward": 0.2, "accuracy": 0.9}),
    ]
    lines = [{"type": "validation", "step": step, **figures} for step, figures in said]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = own.get("runs")["runs"]
    assert (row["validation_before"], row["validation_after"], row["gain"]) == (None, 0.9, None)


@pytest.mark.whole
def test_a_training_loop_of_ones_own_has_no_number_of_steps_to_reach(
    own: runs.Studio, folder: Path, trained: Path
) -> None:
    async def loop() -> None:
        model = str(trained.parent.parent / "model")
        async with ajet.open(model=model, backbone="local", run_dir=str(folder), progress=False):
            pass

    asyncio.run(loop())
    (row,) = own.get("runs")["runs"]
    assert (row["state"], row["steps_wanted"], row["learning_rate"]) == ("finished", 0, None)
    assert row["workflow"] == "a training loop of its own"


def test_a_run_that_writes_no_metrics_counts_its_episodes(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"), runs.line("1.0/t/1"))
    assert own.get("run", run="a")["episodes"] == 2
    assert [row["episodes"] for row in own.get("runs")["runs"]] == [2]


def test_a_curve_has_the_values_of_the_metrics_file(studio: runs.Studio, trained: Path) -> None:
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    wanted = [[line["step"], line["loss"]] for line in lines if line["type"] == "train"]
    assert studio.get("series", run=trained.name, name="loss", phase="train")["points"] == wanted


def test_a_long_curve_is_thinned_evenly_with_both_ends(own: runs.Studio, folder: Path) -> None:
    (folder / "a").mkdir()
    lines = [
        json.dumps({"type": "train", "step": step, "reward": step / 2}) + "\n" for step in range(1, 9001)
    ]
    (folder / "a" / "metrics.jsonl").write_text("".join(lines))
    points = own.get("series", run="a", name="reward", phase="train")["points"]
    assert len(points) == 2000
    assert (points[0], points[-1]) == ([1, 0.5], [9000, 4500.0])


def test_steps_have_metrics_and_come_in_pages(studio: runs.Studio, trained: Path) -> None:
    found = studio.get("steps", run=trained.name, phase="train", limit=1)
    assert found["total"] == 2
    (row,) = found["rows"]
    assert (row["step"], row["episodes"], row["failures"]) == (1, 6, 0)
    assert row["seconds"] == pytest.approx(row["seconds_rollout"] + row["seconds_update"])
    (row,) = studio.get("steps", run=trained.name, phase="train", after=1)["rows"]
    assert row["step"] == 2


def test_a_step_is_listed_while_its_episodes_run(own: runs.Studio, folder: Path) -> None:
    runs.append(
        folder / "a", runs.line("1.0/t/0", reward=1.0), runs.line("1.0/t/1", failure="timeout", reward=0.0)
    )
    (row,) = own.get("steps", run="a", phase="train")["rows"]
    assert row == {"step": 1, "episodes": 2, "reward": 1.0, "failures": 1, "seconds": None}


def test_logs_are_read_from_their_end(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    (folder / "a" / "service.log").write_text("".join(f"line {n}\n" for n in range(1200)))
    assert own.get("log", run="a")["files"] == [{"name": "service.log", "bytes": 10_890}]
    last = own.get("log", run="a", name="service.log")
    assert (len(last["lines"]), last["lines"][0], last["lines"][-1]) == (500, "line 700", "line 1199")
    before = own.get("log", run="a", name="service.log", before=last["start"])
    assert (before["lines"][0], before["lines"][-1]) == ("line 200", "line 699")


def test_the_log_begins_with_what_the_run_has_said(studio: runs.Studio, trained: Path) -> None:
    first = studio.get("log", run=trained.name)["files"][0]["name"]
    lines = studio.get("log", run=trained.name, name=first)["lines"]
    assert first == "run.log" and any(line.endswith(f"run folder: {trained}") for line in lines)
    assert [line.split("  ")[1] for line in lines if "  step " in line] == ["step 1/2", "step 2/2"]


def test_steps_beyond_the_goal_that_the_job_names_are_not_counted_against_it(
    own: runs.Studio, folder: Path
) -> None:
    (
        folder / "a"
    ).mkdir()  # of an earlier release, which kept the first goal when a run went on with a longer one
    (folder / "a" / "job.yaml").write_text(json.dumps({"train": {"steps": 30}, "backbone": "local"}))
    lines = [{"type": "train", "step": n, "reward": 1.0} for n in range(1, 34)]
    for number, wanted in ((29, 30), (30, 30), (33, 0)):
        (folder / "a" / "metrics.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines[:number])
        )
        (row,) = own.get("runs")["runs"]
        assert (row["steps"], row["steps_wanted"]) == (number, wanted)


def test_a_verdict_compares_validations_and_says_what_is_next(own: runs.Studio, folder: Path) -> None:
    lines = [
        runs.line(
            f"validation@{step}.0/t{n}/0", phase="validation", step=step, task=f"t{n}", is_success=step > 0
        )
        for step in (0, 4, 8)
        for n in range(8)
    ]
    # One that has not come to its end.
    lines.append(runs.line("validation@9.0/t0/0", phase="validation", step=9, task="t0", is_success=False))
    runs.append(folder / "a", *lines)
    metrics = [{"type": "train", "step": n, "reward": 0.5} for n in range(1, 9)]
    metrics += [{"type": "validation", "step": n, "reward": n / 8} for n in (0, 4, 8)]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in metrics))
    found = own.get("run", run="a")["verdict"]
    assert found["outcome"] == "learned"
    assert found["told"].startswith(
        "accuracy on 8 validation tasks 0.000 → 1.000, a change of +1.000, p = 0.016, "
    )
    assert found["told"].endswith("8 tasks better, 0 worse")
    runs.append(folder / "b", runs.line("1.0/t/0"))
    assert own.get("run", run="b")["verdict"] is None, "nothing was trained"


@pytest.mark.parametrize(
    "damaged",
    [
        {"reward": "x"}, {"reward": None}, {"reward": [1]}, {"reward": 10**400}, {"groups_zero_advantage": {}, "reward": 1.0},
        {"alarm/repetition": "x", "reward": 1e308},
    ],
)  # fmt: skip
def test_metrics_that_are_none_do_not_hide_a_run(
    own: runs.Studio, folder: Path, damaged: dict[str, object]
) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    lines = [{"type": "train", "step": n, **damaged} for n in range(1, 9)]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for job in ("{}", '{"train": 7}', '{"task": {"selector": [1]}, "train": {"learning_rate": {}}}'):
        (folder / "a" / "job.yaml").write_text(job)
        assert own.get("run", run="a")["steps"] == 8


@pytest.mark.parametrize("name", ["../b/service.log", "/etc/passwd", "episodes.jsonl", "link.log"])
def test_only_logs_of_the_run_folder_are_read(own: runs.Studio, folder: Path, name: str) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    (folder / "b").mkdir()
    (folder / "b" / "service.log").write_text("secret")
    (folder / "a" / "link.log").symlink_to(folder / "b" / "service.log")
    assert own.refused("log", run="a", name=name)[0] == 404


@pytest.mark.parametrize(
    ("running", "steps", "state"),
    [
        (None, 3, "finished"),
        (None, 2, "interrupted"),
        ("dead", 2, "failed"),
        ("this", 2, "live"),
        ("damaged", 2, "failed"),
    ],
)
def test_the_state_follows_from_what_the_run_left_behind(
    own: runs.Studio, folder: Path, running: str | None, steps: int, state: str
) -> None:
    import os
    import socket
    import subprocess
    import sys

    runs.append(folder / "a", runs.line("1.0/t/0"))
    (folder / "a" / "job.yaml").write_text(
        yaml.safe_dump({"backbone": {"name": "local"}, "train": {"steps": 3}})
    )
    (folder / "a" / "metrics.jsonl").write_text(json.dumps({"type": "train", "step": steps}) + "\n")
    if running is not None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        who = {
            "pid": os.getpid() if running == "this" else gone.pid,
            "host": socket.gethostname(),
            "since": "",
        }
        (folder / "a" / "running.json").write_text("{" if running == "damaged" else json.dumps(who))
    (row,) = own.get("runs")["runs"]
    assert row["state"] == state
