"""The tree of a group, as the server tells it; test_page.py has how the page draws it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ajet.rollout.batch_record import BATCHES, trained_advantages
from ajet_studio import view_episodes
from tests.plugins.audit.conftest import Runs
from tests.plugins.audit.conftest import runs as recorded  # noqa: F401
from tests.plugins.audit.conftest import saved_tokenizer as saved_tokenizer
from tests.plugins.audit.test_forks import FORKED, by_member, steady, varied

from . import runs


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run of the first test is kept for the others."""
    return tmp_path_factory.mktemp("forked") / "run"


@pytest.fixture
def forked(kept: Path, request: pytest.FixtureRequest, folder: Path) -> str:
    """The id of a run with forks of forks in the folder of the studio."""
    if not kept.exists():
        recorded: Runs = request.getfixturevalue("recorded")
        made = recorded.run(steady, by_member, varied, rollout=FORKED, credit="tree", steps=1)
        shutil.copytree(made, kept)
    shutil.copytree(kept, folder / "forked")
    return "forked"


@pytest.mark.whole
def test_a_tree_has_the_advantages_that_were_trained(own: runs.Studio, folder: Path, forked: str) -> None:
    trained = trained_advantages(folder / forked, 1)
    assert trained
    task = own.get("episodes", run=forked)["rows"][0]["task"]
    found = own.get("grouptree", run=forked, phase="train", step=1, task=task)
    assert found["forks"] and found["recorded"] and found["left_out"] == 0
    rows = own.get("group", run=forked, phase="train", step=1, task=task)["rows"]
    assert {n["id"]: n["value"] for n in found["nodes"] if n["id"]} == {
        row["id"]: row["reward"] for row in rows
    }
    assert found["value"] == pytest.approx(sum(row["reward"] for row in rows) / len(rows))
    for node in found["nodes"]:
        if node["id"] and node["stretches"]:
            last = node["stretches"][-1]
            assert last["advantage"] == pytest.approx(trained[node["id"], last["last"]])


@pytest.mark.whole
def test_tokens_have_the_advantage_of_their_call(own: runs.Studio, folder: Path, forked: str) -> None:
    trained = trained_advantages(folder / forked, 1)
    assert trained
    for row in own.get("episodes", run=forked)["rows"]:
        shown = own.get("tokens", run=forked, id=row["id"], timeline=0, start=0, count=1000)["rows"]
        of_calls = {token["call"]: token["advantage"] for token in shown if token["trained"]}
        wanted = {call: a for (id, call), a in trained.items() if id == row["id"]}
        assert of_calls == pytest.approx({call: wanted[call] for call in of_calls}) and of_calls


def test_an_episode_whose_calls_learned_their_own_has_no_advantage_as_a_whole(
    own: runs.Studio, folder: Path, forked: str
) -> None:
    trained = trained_advantages(folder / forked, 1)
    assert trained
    several = 0
    for row in own.get("episodes", run=forked)["rows"]:
        if len({round(a, 4) for (id, _), a in trained.items() if id == row["id"]}) > 1:
            assert own.get("episode", run=forked, id=row["id"])["advantages"] == {}
            several += 1
    assert several


def test_a_plain_group_has_a_branch_for_each_episode(studio: runs.Studio, trained: Path) -> None:
    row = studio.get("episodes", run=trained.name, phase="train")["rows"][0]
    of = {"phase": "train", "step": row["step"], "task": row["task"]}
    found = studio.get("grouptree", run=trained.name, **of)
    assert [node["parent"] for node in found["nodes"]] == [-1] * 3 and not found["forks"]
    cards = {one["id"]: one["advantage"] for one in studio.get("group", run=trained.name, **of)["rows"]}
    shown = {node["id"]: {one["advantage"] for one in node["stretches"]} for node in found["nodes"]}
    assert shown == {id: {advantage} for id, advantage in cards.items()}


def test_of_a_damaged_record_the_advantages_are_unknown(own: runs.Studio, folder: Path, forked: str) -> None:
    (file,) = (folder / forked / BATCHES).iterdir()
    file.write_bytes(file.read_bytes()[:99])
    task = own.get("episodes", run=forked)["rows"][0]["task"]
    found = own.get("grouptree", run=forked, phase="train", step=1, task=task)
    assert not found["recorded"]
    assert {s["advantage"] for node in found["nodes"] for s in node["stretches"]} == {None}


def test_with_a_critic_the_record_has_no_advantages(own: runs.Studio, folder: Path, forked: str) -> None:
    (folder / forked / "job.yaml").write_text('{"train": {"algorithm": {"type": "ppo"}, "filters": []}}')
    task = own.get("episodes", run=forked)["rows"][0]["task"]
    assert not own.get("grouptree", run=forked, phase="train", step=1, task=task)["recorded"]


def test_a_large_tree_is_cut_and_a_missing_group_is_refused(
    own: runs.Studio, forked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = own.get("episodes", run=forked)["rows"][0]["task"]
    monkeypatch.setattr(view_episodes, "MOST_STRETCHES", 3)
    found = own.get("grouptree", run=forked, phase="train", step=1, task=task)
    assert sum(len(node["stretches"]) for node in found["nodes"]) == 3 and found["left_out"] > 0
    status, said = own.refused("grouptree", run=forked, phase="train", step=9, task=task)
    assert status == 404 and "no episodes of this task" in said
