"""Ratings, comments and corrections, kept beside the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ajet.reports.folder import read_run
from ajet_readers.run_feedback import Feedback, labelled_examples, read_feedback, transcripts

from . import runs


@pytest.fixture
def rated(own: runs.Studio, folder: Path) -> runs.Studio:
    runs.append(folder / "a", runs.line("1.0/t/0"), runs.line("1.0/t/1", member=1))
    return own


def test_a_rating_is_stored_and_shown_with_its_episode(rated: runs.Studio, folder: Path) -> None:
    first = rated.post(run="a", id="1.0/t/0", rating=1, comment="good", correction="")
    assert first.status_code == 200
    second = rated.post(run="a", id="1.0/t/0", rating=-1, comment="no: <b>", correction="42\ud83d")
    ratings = second.json()["ratings"]
    assert [(r["rating"], r["comment"], r["correction"]) for r in ratings] == [
        (1, "good", ""),
        (-1, "no: <b>", "42\ud83d"),
    ]
    assert rated.get("episode", run="a", id="1.0/t/0")["ratings"] == ratings
    assert rated.get("episode", run="a", id="1.0/t/1")["ratings"] == []
    lines = [json.loads(line) for line in (folder / "a" / "feedback.jsonl").read_text().splitlines()]
    assert [(line["id"], line["rating"]) for line in lines] == [("1.0/t/0", 1), ("1.0/t/0", -1)]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"rating": 2},
        {"rating": -0.5},
        {"rating": "good"},
        {"rating": True},
        {"rating": 1, "comment": 7},
        {"rating": 1, "correction": "x" * 1_000_001},
    ],
)
def test_what_is_not_feedback_is_refused(rated: runs.Studio, folder: Path, body: dict[str, Any]) -> None:
    answer = rated.post(run="a", id="1.0/t/0", **body)
    assert answer.status_code == 400
    assert "\n" not in answer.json()["error"]
    assert not (folder / "a" / "feedback.jsonl").exists()


@pytest.mark.parametrize(
    "body", [{"run": "b", "id": "1.0/t/0"}, {"run": "../a", "id": "1.0/t/0"}, {"run": "a", "id": "9"}, {}]
)
def test_feedback_needs_an_episode_that_exists(
    rated: runs.Studio, folder: Path, body: dict[str, Any]
) -> None:
    assert rated.post(rating=1, **body).status_code == 404
    assert [path.name for path in folder.iterdir()] == ["a"]


@pytest.mark.parametrize("body", [b"{", b"\xff", b"[]", b"[" * 100_000, b'{"rating": NaN}'])
def test_a_body_that_is_not_a_json_object_is_refused(rated: runs.Studio, body: bytes) -> None:
    found = rated.client.post("/api/feedback", content=body, headers={"origin": rated.url})
    assert found.status_code == 400


def test_a_body_that_is_too_large_is_refused(rated: runs.Studio) -> None:
    found = rated.client.post("/api/feedback", content=b" " * (9 << 20), headers={"origin": rated.url})
    assert found.status_code == 413


@pytest.mark.whole
def test_what_is_stored_becomes_labels_and_transcripts(studio: runs.Studio, trained: Path) -> None:
    id = studio.get("episodes", run=trained.name, phase="train")["rows"][0]["id"]
    studio.post(run=trained.name, id=id, rating=0, comment="", correction="")
    studio.post(run=trained.name, id=id, rating=1, comment="", correction="2")
    studio.post(run=trained.name, id=id, rating=None, comment="what a sum", correction="")
    try:
        said = read_feedback(trained)
        assert said == {id: Feedback(id, 1.0, "what a sum", "2")}
        run = read_run(trained)
        assert [example["label"] for example in labelled_examples(run, said)] == [1.0, 1.0]
        (chat,) = transcripts(run, said)
        assert chat["messages"][-1] == {"role": "assistant", "content": "2"}
    finally:
        (trained / "feedback.jsonl").unlink()


def test_damaged_lines_of_the_file_hide_no_others(rated: runs.Studio, folder: Path) -> None:
    rated.post(run="a", id="1.0/t/0", rating=0.5)
    with (folder / "a" / "feedback.jsonl").open("a") as file:
        file.write("not json\n[]\n")
    rated.post(run="a", id="1.0/t/0", rating=0.25)
    assert [r["rating"] for r in rated.get("episode", run="a", id="1.0/t/0")["ratings"]] == [0.5, 0.25]
