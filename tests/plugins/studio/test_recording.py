"""The recording of an episode, as the page downloads it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ajet.reports.folder import read_run
from ajet.reports.recording import record
from ajet.rollout.recording import Recording

from . import runs


@pytest.mark.whole
def test_the_download_is_the_recording_that_ajet_show_makes(
    studio: runs.Studio, trained: Path, tmp_path: Path
) -> None:
    id = studio.get("episodes", run=trained.name, phase="train")["rows"][0]["id"]
    answer = studio.client.get("/api/recording", params={"run": trained.name, "id": id})
    assert answer.status_code == 200
    run = read_run(trained)
    assert answer.text == record(trained, [run.line(run.find(id))]).text()
    name = id.replace("/", "-")
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}.json"'
    (tmp_path / "it.json").write_text(answer.text)
    (episode,) = Recording.read(tmp_path / "it.json").episodes
    assert [call.agent for call in episode.calls] == ["solver", "solver", "critic"]


def test_names_of_files_and_texts_may_be_hostile(own: runs.Studio, folder: Path) -> None:
    id, query = '1.0/";\r\nset-cookie: x/0', "half \ud83d <b>"
    given = {"query": query, "messages": [], "metadata": {}}
    raw = json.dumps(json.loads(runs.line(id, given=given))) + "\n"  # half of a pair is written as an escape
    runs.append(folder / "a", raw)
    answer = own.client.get("/api/recording", params={"run": "a", "id": id})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-disposition"] == 'attachment; filename="1.0-set-cookie-x-0.json"'
    assert answer.json()["episodes"][0]["task"]["query"] == query


def test_what_cannot_be_recorded_is_said_in_one_line(own: runs.Studio, folder: Path) -> None:
    runs.append(
        folder / "a",
        runs.line("1.0/t/0"),
        runs.line("1.0/u/0", calls=[{"number": 0, "key": "other", "answer": 5}], given={}),
    )
    status, text = own.refused("recording", run="a", id="1.0/t/0")
    assert status == 422 and "has only the id of the task" in text
    status, text = own.refused("recording", run="a", id="1.0/u/0")
    assert status == 422 and "not an episode of this version's journal" in text
    assert own.refused("recording", run="a", id="1.0/v/0")[0] == 404
