"""The audit of a run with steered groups: each start stood in the journal before, and no replayed token is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ajet.reports.credit import run_credit
from ajet.reports.episode import episode_report
from ajet.reports.folder import read_run
from ajet.reports.group_tree import GroupTrees
from ajet.reports.run_summary import summarise
from ajet.reports.text import describe_episode, describe_run
from ajet.reports.token_text import TokenText
from ajet.types import Task
from tests.plugins.audit.conftest import Runs, audited, everything
from tests.plugins.audit.test_believes_nothing import Files, array, setting
from tests.plugins.audit.test_forks import steady, varied
from tests.reports.conftest import page

pytestmark = pytest.mark.whole

STEERED: Any = {"group_size": 3, "steer": {"band": [0.4, 0.6], "whole": 0.01}}
STEP = 4


def one_of_three(task: Task, output: Any, episode: Any) -> float:
    return float(episode.member == 1)


@pytest.fixture(scope="module")
def _kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture
def steered(runs: Runs, _kept: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a run whose groups are steered from the second step on, without its tokenizer."""
    if not _kept:
        made = runs.run(steady, one_of_three, varied, rollout=STEERED, tasks=2, steps=STEP)
        found = audited(made)
        assert found.faults == [] and found.trained and found.excluded.get("replayed", 0) == 0
        assert found.trained + found.excluded.get("no_credit", 0) == found.sampled
        shutil.rmtree(made / "tokenizer")
        _kept["run"] = shutil.move(made, tmp_path_factory.mktemp("kept") / "run")
    return Path(shutil.copytree(_kept["run"], runs.folder / "copy"))


def test_a_run_with_steered_groups_trains_every_sampled_token_once(steered: Path) -> None:
    files = Files(steered, STEP)
    assert all(line["fork"]["steered"] and line["fork"]["calls"] for line in files.own)
    assert files.figures["steered"] == 6 and "reward" not in files.figures
    assert audited(steered).faults == []


def test_steered_groups_whose_episodes_are_forked_too_are_audited(runs: Runs) -> None:
    rollout = {
        "group_size": 4,
        "fork": {"roots": 2, "depth": 2},
        "steer": {"whole": 0.01, "band": [0.4, 0.6]},
    }
    found = audited(runs.run(steady, one_of_three, varied, rollout=rollout, credit="tree", tasks=2, steps=2))
    assert found.faults == [] and found.trained


@pytest.mark.parametrize("ahead", [False, True])
def test_tools_several_agents_and_targets_are_replayed_from_the_journal(runs: Runs, ahead: bool) -> None:
    """A tool loop, a rewritten history, a prefill, two answers to one prompt and a second agent with an adapter of its own; also in
    a run whose next step's episodes run during an update."""
    targets: Any = {
        "solver": {"agents": ["*"], "lora": {"rank": 2}},
        "critic": {"agents": ["critic"], "lora": {"rank": 2}},
    }
    settings: Any = {"asynchronous": True, "max_staleness": 1} if ahead else {"target_keys": targets}
    folder = runs.run(everything, one_of_three, rollout=STEERED, tasks=2, steps=3, **settings)
    found = audited(folder)
    assert found.faults == [] and found.trained
    steered = [line for line in Files(folder, 3).own if "fork" in line]
    assert steered and not any(line["failure"] for line in steered)


def with_demonstrations(runs: Runs) -> tuple[Path, Path]:
    """A run whose tasks fail unless they begin as a transcript does, and its transcripts."""
    file = runs.folder / "demos.jsonl"
    said = [f"it is {n}" for n in (71, 72, 73)]
    chats = []
    for number in range(2):
        chat: list[Any] = [{"role": "user", "content": f"question {number}"}]
        for answer in said:
            chat += [{"role": "assistant", "content": answer}, {"role": "user", "content": "go on"}]
        chats.append({"task": f"t{number}", "messages": chat[:-1]})
    file.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    rollout = {"group_size": 2, "steer": {"whole": 0.01, "band": [0.4, 0.6], "demonstrations": str(file)}}
    made = runs.run(steady, lambda task, output: 0.0, varied, rollout=rollout, tasks=2, steps=3)
    return made, file


def test_answers_of_demonstrations_are_compared_with_their_file(runs: Runs) -> None:
    folder, file = with_demonstrations(runs)
    files = Files(folder, 3)
    assert {line["fork"]["parent"] for line in files.own} == {"demos.jsonl:1", "demos.jsonl:2"}
    assert audited(folder).faults == []
    text = file.read_text()
    for old, new, said in [
        ("it is 71", "it is 17", "is not the answer of the demonstration"),
        ('"task": "t0"', '"task": "t1"', "which is of task t1"),
    ]:
        file.write_text(text.replace(old, new))
        assert any(said in fault for fault in audited(folder).faults)
    file.unlink()
    found = audited(folder)
    assert found.faults == [] and any("cannot be read" in note for note in found.notes)


# ---------------------------------------------------------------------------- planted faults


def line_of(f: Files, step: int = STEP) -> dict[str, Any]:
    """The first steered episode that is trained."""
    trained = {sample["episode"] for sample in f.about["samples"]}
    return next(line for line in f.own if line["id"] in trained)


def trained_prefix(f: Files) -> None:
    """The first call of a steered episode, which is replayed, is trained with the advantage of the others."""
    at, name = 0, line_of(f)["id"]
    for sample in f.about["samples"]:
        if sample["episode"] == name:
            (call,) = [c for c in line_of(f)["calls"] if c["number"] == 0]
            start, end = call["tokens"]["prompt"][1], call["tokens"]["end"][1]
            first = sample["spans"][0]
            inside = slice(at + start, at + end)
            for array_name, value in {
                "mask": True,
                "weights": self_weight(f, at, first),
                "advantages": f.arrays["advantages"][at + first[0]],
            }.items():
                f.arrays[array_name][inside] = value
            sample["spans"].insert(0, [start, end, 0, *first[3:5], None])
            break
        at += sample["length"]
    f.follow()


def self_weight(f: Files, at: int, span: Any) -> float:
    return float(f.arrays["weights"][at + span[0]])


def whole_group(f: Files, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the start of all episodes of a group."""
    group = line_of(f)["id"].rpartition("/")[0]
    for line in f.own:
        if line["id"].rpartition("/")[0] == group:
            change(line)


def of_another_task(f: Files) -> None:
    task = line_of(f)["task"]
    other = next(x["id"] for x in f.journal if x["step"] < STEP and x["task"] != task)
    whole_group(f, lambda line: line["fork"].update(parent=other))


def of_another_episode(f: Files) -> None:
    task, parent = line_of(f)["task"], line_of(f)["fork"]["parent"]
    other = next(x["id"] for x in f.journal if x["step"] < STEP and x["task"] == task and x["id"] != parent)
    whole_group(f, lambda line: line["fork"].update(parent=other))


def later_start(f: Files) -> None:
    """The start stands in the journal after what begins with it."""
    parent = line_of(f)["fork"]["parent"]
    (line,) = [x for x in f.journal if x["id"] == parent]
    f.journal.remove(line)
    f.journal.append(line)


def never_sampled(f: Files) -> None:
    """The logprobs of a replayed call are not those with which its answer was sampled."""
    call = next(c for c in line_of(f)["calls"] if c["tokens"].get("replayed"))
    array(call, "logprobs", lambda old: old - 0.5)


def failed_start(f: Files) -> None:
    parent = line_of(f)["fork"]["parent"]
    (line,) = [x for x in f.journal if x["id"] == parent]
    line.update(failure="timeout", error="no result")


FAULTS: dict[str, tuple[Callable[[Files], Any], str]] = {
    "a trained prefix": (trained_prefix, "call 0 is trained, although it is excluded as replayed"),
    "a prefix of another task": (of_another_task, "which is of task"),
    "a prefix of another episode": (of_another_episode, "which is replayed, is not one of its parent"),
    "a start that was never sampled": (
        partial(whole_group, change=lambda line: line["fork"].update(parent="1.0/t0/9")),
        "the journal does not have before it",
    ),
    "a start that came later": (later_start, "the journal does not have before it"),
    "an answer that was never sampled": (never_sampled, "which is replayed, is not one of its parent"),
    "a start of the same step": (
        lambda f: whole_group(f, lambda line: line["fork"].update(parent=f.own[0]["id"])),
        "step 4",
    ),
    "a start that failed": (failed_start, "failed (timeout)"),
    "a group with two starts": (
        lambda f: line_of(f)["fork"].update(calls=line_of(f)["fork"]["calls"] + 1),
        "do not all begin with the same calls",
    ),
    "a longer prefix than was replayed": (
        partial(whole_group, change=lambda line: line["fork"].update(calls=line["fork"]["calls"] + 1)),
        "but left it after",
    ),
    "a job that does not steer": (partial(setting, "rollout", "steer", None), "has no rollout.steer"),
    "a steered episode as one of the group": (
        lambda f: line_of(f)["fork"].pop("steered"),
        "which its group does not have",
    ),
    "a steered episode as a whole one": (
        lambda f: line_of(f).pop("fork"),
        "is marked as replayed, but its episode is not a fork",
    ),
    "too few steered episodes in the metrics": (
        lambda f: f.figures.update(steered=3),
        "metrics.jsonl says steered 3, but the journal gives 6",
    ),
    "too few steered groups in the metrics": (
        lambda f: f.figures.update(groups_steered=1),
        "metrics.jsonl says groups_steered 1, but its batch has 2",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_named(steered: Path, name: str) -> None:
    plant, said = FAULTS[name]
    files = Files(steered, STEP)
    plant(files)
    files.close()
    faults = audited(steered).faults
    assert any(said in fault for fault in faults), faults


def test_what_is_replayed_is_marked_where_an_episode_is_shown(steered: Path) -> None:
    run = read_run(steered)
    entry = next(e for e in reversed(run.entries) if e.step == STEP)
    fork = run.line(entry)["fork"]
    credit = run_credit(run)
    report = episode_report(run, entry, credit, TokenText(steered), GroupTrees(run, credit))
    assert any(f"of {fork['parent']}: replayed, not trained" in note for note in report.notes)
    lines = [line for chat in report.conversations for line in chat.chat if line.call is not None]
    assert {line.call for line in lines if line.replayed} == set(range(fork["calls"]))
    shown = describe_episode(report, everything=False, tokens=False, colour=False)
    assert any("call 0, replayed" in str(line) for line in shown)
    assert any(chat.about == "not trained: replayed" for chat in report.conversations)
    summary = summarise(run, credit)
    starts = {one.task: [step for step, _ in one.starts] for one in summary.steered}
    assert starts == {"t0": [2, 3, 4], "t1": [2, 3, 4]}
    assert all(one.rates == ((1, pytest.approx(1 / 3)),) for one in summary.steered)
    assert "steered tasks" in describe_run(summary)
    assert "Steered tasks" in page(summary, [report], everything=False)
