"""What a later judge says of a run, as `ajet rejudge` writes it beside the journal. test_page.py has how the page draws it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ajet_studio import view_rejudged

from . import runs


def again(id: str, reward: float | None, **values: Any) -> str:
    """A line of rejudged.jsonl: a verdict, or that the judge failed."""
    judged = {"failure": "judge:ValueError", "error": "no"} if reward is None else {"reward": reward}
    line = {
        "type": "episode",
        "id": id,
        "phase": "train",
        "step": 99,
        "task": "t",
        "recorded": {"reward": 99.0},
    }
    return json.dumps({**line, "judged": judged, "changed": False, **values}) + "\n"


def write(run: Path, *lines: str) -> None:
    (run / "rejudged.jsonl").write_text("".join(lines))


@pytest.fixture
def run(folder: Path) -> Path:
    """Two steps of two episodes, and one that failed."""
    lines = [runs.line(f"{s}.0/t/{m}", step=s, member=m, reward=float(m)) for s in (1, 2) for m in (0, 1)]
    runs.append(folder / "a", *lines, runs.line("2.1/u/0", step=2, failure="timeout", reward=0.0))
    return folder / "a"


def test_both_rewards_are_shown_by_step_with_what_changes(own: runs.Studio, run: Path) -> None:
    write(
        run,
        again("1.0/t/0", 0.0, push=[-0.5, -0.5]),
        again("1.0/t/1", 1.0, push=[0.5, 0.5]),
        again("2.0/t/0", 0.0, push=[-0.5, 0.0]),
        again("2.0/t/1", 0.0, push=[0.5, 0.0], changed=True),
        again("2.1/u/0", 0.0, judged=None, unknown="it failed before there was anything to judge"),
    )
    found = own.get("rejudged", run="a")
    assert found["curves"] == {"train": [[[1, 0.5], [2, 0.5]], [[1, 0.5], [2, 0.0]]]}
    assert (found["changed"], found["judged"], found["failing"]) == (1, 4, 0)
    assert found["unknown"] == [["it failed before there was anything to judge", 1]]
    (step,) = found["steps"]
    assert (step["phase"], step["step"], step["changed"], step["recorded"], step["judged"]) == (
        "train",
        2,
        1,
        0.5,
        0.0,
    )
    (episode,) = found["episodes"]
    assert (episode["id"], episode["reward"], episode["judged"], episode["push"]) == (
        "2.0/t/1",
        1.0,
        0.0,
        [0.5, 0.0],
    )
    assert own.get("run", run="a")["rejudged"] is True


def test_steps_with_wrong_signs_are_those_of_rejudge(own: runs.Studio, folder: Path, trained: Path) -> None:
    """Verdicts that turn each group round: every trained token had the wrong sign."""
    shutil.copytree(trained, folder / "a")
    rows = own.get("episodes", run="a", phase="train")["rows"]
    write(
        folder / "a",
        *(again(row["id"], 1 - row["reward"], push=[p := row["reward"] - 0.5, -p]) for row in rows),
    )
    found = own.get("rejudged", run="a")
    tokens = {
        s: sum(r["trained_tokens"] for r in rows if r["step"] == s and r["reward"] != 0.5) for s in (1, 2)
    }
    assert {step["step"]: (step["trained"], step["wrong"]) for step in found["steps"]} == {
        s: (n, n) for s, n in tokens.items()
    }
    assert found["marks"] == [1, 2] and found["later"] == 3  # the validations are not in the file


def test_the_step_task_and_recorded_reward_are_those_of_the_journal(own: runs.Studio, run: Path) -> None:
    write(run, again("1.0/t/1", 0.25))
    (episode,) = own.get("rejudged", run="a")["episodes"]
    assert (episode["step"], episode["task"], episode["reward"], episode["judged"]) == (1, "t", 1.0, 0.25)


def test_a_verdict_that_the_recorded_judge_or_the_later_one_did_not_give_is_a_change(
    own: runs.Studio, run: Path
) -> None:
    write(run, again("1.0/t/1", None), again("2.1/u/0", 1.0))
    found = own.get("rejudged", run="a")
    shown = {
        one["id"]: (one["failure"], one["reward"], one["judged"], one["why"]) for one in found["episodes"]
    }
    assert shown == {"1.0/t/1": (None, 1.0, None, "judge:ValueError"), "2.1/u/0": ("timeout", 0.0, 1.0, None)}
    assert found["failing"] == 1


@pytest.mark.parametrize(
    "broken",
    [
        "{", "[]", "7", '{"type": 7}', '{"type": "episode", "id": []}', "\x00\x01", '{"type": ' + "[" * 100_000,
        again("1.0/t/1", 0.0, judged=[]), again("1.0/t/1", 0.0, judged={"reward": "1"}), again("1.0/t/1", 0.0, judged={"reward": True}),
        again("1.0/t/1", 0.0, push=[0.1]), again("1.0/t/1", 0.0, push="ab"), again("1.0/t/1", 0.0, push=[float("nan"), 0.0]),
    ],
)  # fmt: skip
def test_a_broken_line_is_counted_and_the_others_are_shown(own: runs.Studio, run: Path, broken: str) -> None:
    write(run, again("2.0/t/1", 0.0), broken.rstrip("\n") + "\n", again("2.0/t/0", 1.0))
    found = own.get("rejudged", run="a")
    assert (found["broken"], found["judged"], found["changed"]) == (1, 2, 2)


def test_what_only_one_of_both_files_has_is_counted(own: runs.Studio, run: Path) -> None:
    other = json.dumps({"type": "a type of a later release"}) + "\n"
    write(run, again("2.0/t/1", 1.0), again("2.0/t/1", 0.0), again("nobody", 0.0), other)
    found = own.get("rejudged", run="a")
    assert (found["gone"], found["later"], found["broken"], found["changed"]) == (2, 4, 0, 0)


def test_huge_rewards_and_pushes_are_shown_as_far_as_json_has_them(own: runs.Studio, run: Path) -> None:
    write(run, again("1.0/t/0", 1e308, push=[-1e308, 1e308]), again("1.0/t/1", 1e308, push=[1e-300, -1e-300]))
    found = own.get("rejudged", run="a")
    assert found["curves"]["train"][0] == [[1, 0.5]]
    assert [one["id"] for one in found["episodes"]] == ["1.0/t/0", "1.0/t/1"]
    assert found["steps"][0]["wrong"] == 0  # no token is trained in these lines


def test_of_a_long_file_the_beginning_is_read(
    own: runs.Studio, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run, again("1.0/t/1", 0.0), *[again("2.0/t/1", 0.0)] * 20)
    monkeypatch.setattr(view_rejudged, "MOST_BYTES", 1000)
    found = own.get("rejudged", run="a")
    assert found["cut"] and found["changed"] == 2 and found["broken"] == 1  # the line at which it is cut


def test_without_the_file_there_is_nothing_to_show(own: runs.Studio, run: Path) -> None:
    assert own.get("run", run="a")["rejudged"] is False
    assert own.refused("rejudged", run="a") == (404, "a has not been judged again: it has no rejudged.jsonl")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_file_that_is_none_is_not_read(own: runs.Studio, run: Path, folder: Path, kind: str) -> None:
    elsewhere = folder.parent / "secret"
    elsewhere.write_text(again("1.0/t/1", 0.0))
    path = run / "rejudged.jsonl"
    {"link": lambda: path.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(path), "folder": path.mkdir}[
        kind
    ]()
    assert own.refused("rejudged", run="a")[0] == 403
