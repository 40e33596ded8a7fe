"""Damaged files and hostile texts: each is reported in one line or shown as it is, and nothing else is lost."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from . import runs

HOSTILE = [
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eabc\u2066\u200b",
    "\x00\r\n\u2028\u2029",
    "</script>]]>-->",
    "'; DROP TABLE episodes; --",
    "\U0001f600 日本語 é",
]


def chat(text: str) -> dict[str, Any]:
    return {"k": [[-1, {"role": "user", "content": text}], [0, {"role": "assistant", "content": text}]]}


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_arrives_as_it_is_and_only_as_json(own: runs.Studio, folder: Path, text: str) -> None:
    id = f"1.0/{text}/0"
    runs.append(
        folder / "a", runs.line(id, task=text, chats=chat(text), response=text, failure=text, error=text)
    )
    (folder / "a" / "job.yaml").write_text(yaml.safe_dump({"workflow": text, "model": text}))
    answer = own.client.get("/api/episode", params={"run": "a", "id": id})
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert [message["content"]["text"] for message in found["messages"][0]] == [text, text]
    assert (found["id"], found["response"]["text"], found["error"]["text"]) == (id, text, text)
    assert own.get("group", run="a", phase="train", step=1, task=text)["rows"][0]["id"] == id
    assert own.get("episodes", run="a", failure=text)["total"] == 1
    assert own.get("runs")["runs"][0]["model"] == text


def test_lone_surrogates_are_kept_in_texts(own: runs.Studio, folder: Path) -> None:
    text = "half \ud83d of a pair"
    runs.append(folder / "a", runs.line("1.0/t/0", chats=chat(text), response=text), runs.line("1.0/t/1"))
    assert own.get("episodes", run="a")["total"] == 2
    found = own.get("episode", run="a", id="1.0/t/0")
    assert found["response"]["text"] == found["messages"][0][0]["content"]["text"] == text
    assert own.get("search", run="a", q="pair")["rows"][0]["id"] == "1.0/t/0"
    assert own.get("run", run="a")["problems"] == []


def test_not_a_number_is_null(own: runs.Studio, folder: Path) -> None:
    nan, inf = float("nan"), float("inf")
    runs.append(
        folder / "a", runs.line("1.0/t/0", reward=nan, metrics={"x": inf}), runs.line("1.0/t/1", reward=-inf)
    )
    lines = [
        {"type": "train", "step": 1, "loss": nan, "reward": 0.5},
        {"type": "train", "step": 2, "loss": 1.0},
    ]
    (folder / "a" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row["reward"] for row in own.get("episodes", run="a", sort="reward")["rows"]] == [None, None]
    found = own.get("episode", run="a", id="1.0/t/0")
    assert (found["reward"], found["metrics"]) == (None, {"x": None})
    assert own.get("series", run="a", name="loss", phase="train")["points"] == [[2, 1.0]]
    assert own.get("steps", run="a", phase="train")["rows"][0]["loss"] is None
    assert own.get("group", run="a", phase="train", step=1, task="t")["rows"][0]["advantage"] is None


@pytest.mark.whole
def test_a_line_of_ten_megabytes_is_an_episode_like_any_other(own: runs.Studio, folder: Path) -> None:
    text = "word " * 2_000_000
    runs.append(
        folder / "a", runs.line("1.0/t/0"), runs.line("1.0/t/1", chats=chat(text)), runs.line("1.0/t/2")
    )
    assert own.get("episodes", run="a")["total"] == 3
    message = own.get("episode", run="a", id="1.0/t/1")["messages"][0][0]
    assert message["content"] == {"text": text[:20_000], "cut": len(text)}
    assert own.get("episode", run="a", id="1.0/t/2")["reward"] == 1.0


@pytest.mark.parametrize(
    ("damaged", "says"),
    [
        ("{not json", "not JSON"),
        ("[]", "not a line of this version's journal"),
        ('{"no": "type"}', "not a line of this version's journal"),
        ('{"type": "episode", "id": 7}', "not a line of this version's journal"),
        ("\x00\x01", "not JSON"),
        ('{"type": ' + "[" * 100_000, "not a line"),
    ],
)
def test_a_damaged_line_is_left_out_and_reported(
    own: runs.Studio, folder: Path, damaged: str, says: str
) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"), damaged + "\n", runs.line("1.0/t/1"))
    assert own.get("episodes", run="a")["total"] == 2
    (problem,) = own.get("run", run="a")["problems"]
    assert problem.startswith("episodes.jsonl: line 2: ")
    assert says in problem and problem.endswith("it is left out")
    assert len(problem) < 500


def test_many_damaged_lines_are_counted(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", *(["{\n"] * 100), runs.line("1.0/t/0"))
    problems = own.get("run", run="a")["problems"]
    assert len(problems) == 21
    assert problems[-1] == "episodes.jsonl: 80 more lines are left out"


def test_a_torn_last_line_is_reported_once_nobody_writes(own: runs.Studio, folder: Path) -> None:
    import socket

    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"), runs.line("1.0/t/1")[:80])
    assert own.get("run", run="a")["problems"] == [
        "episodes.jsonl: the last line was cut off; it is left out"
    ]
    (run / "running.json").write_text(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
    assert own.get("run", run="a")["problems"] == []


def test_a_journal_of_another_version_is_listed_and_its_episodes_say_what_they_lack(
    own: runs.Studio, folder: Path
) -> None:
    older = json.loads(runs.line("1.0/t/0"))
    for name in ("trees", "rewards", "counters", "attempt"):
        del older[name]
    newer = runs.line("1.0/t/1", of_tomorrow={"a": [1]}, type="episode")
    kind = json.dumps({"type": "of_tomorrow", "x": 1}) + "\n"
    runs.append(folder / "a", json.dumps(older) + "\n", newer, kind)
    assert [row["id"] for row in own.get("episodes", run="a")["rows"]] == ["1.0/t/0", "1.0/t/1"]
    status, text = own.refused("episode", run="a", id="1.0/t/0")
    assert status == 422
    assert "episodes.jsonl: line 1: not an episode of this version's journal" in text
    assert "versions.json" in text
    assert own.get("episode", run="a", id="1.0/t/1")["response"]["text"] == "world"
    assert own.get("run", run="a")["problems"] == ["episodes.jsonl: 1 line of an unknown type: left out"]


@pytest.mark.parametrize("tokens", [{"prompt": [9, 9]}, {"prompt": [0, -5], "end": [0, 5]}, None, "x"])
def test_tokens_that_make_no_sense_are_refused_in_one_line(
    own: runs.Studio, folder: Path, tokens: Any
) -> None:
    whole = {
        "prompt": [0, 1], "end": [0, 2], "logprobs": "AAAAAA==", "versions": "AAAAAA==", "finish_reason": "stop",
        "temperature": 1.0, "trained": True, "parent": None, "cause": "",
    }  # fmt: skip
    call = {"number": 0, "agent": "agent", "target": "policy", "key": "k", "answer": 1}
    call["tokens"] = whole | tokens if isinstance(tokens, dict) else tokens  # type: ignore[assignment]
    runs.append(folder / "a", runs.line("1.0/t/0", calls=[call], trees={"k": [[-1, 0, "AAAAAAEAAAA="]]}))
    found = own.client.get("/api/episode", params={"run": "a", "id": "1.0/t/0"})
    assert found.status_code in (200, 404, 422)
    assert "bug" not in found.text and "Traceback" not in found.text


@pytest.mark.parametrize(
    "job", ["{", "- a", "a: &a [*a]", "!!python/object/apply:os.system ['true']", "\x00", ""]
)
def test_a_job_that_cannot_be_read_leaves_the_rest_readable(own: runs.Studio, folder: Path, job: str) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    (folder / "a" / "job.yaml").write_text(job)
    (row,) = own.get("runs")["runs"]
    assert row["state"] in ("unreadable", "finished", "interrupted")
    assert "\n" not in row["problem"]
    assert own.get("run", run="a")["phases"] == {"train": {"steps": 1, "episodes": 1}}
    assert own.get("episode", run="a", id="1.0/t/0")["reward"] == 1.0


def test_code_that_a_run_folder_names_is_not_run(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"), runs.line("1.0/t/1", member=1, reward=0.0))
    (run / "mine.py").write_text(f"open({str(run / 'ran')!r}, 'w')\n")
    own_plugin = {"type": f"{run / 'mine.py'}:Mine"}
    job = {
        "workflow": f"{run / 'mine.py'}:run", "judge": own_plugin, "task": {"reader": own_plugin},
        "train": {"algorithm": own_plugin, "filters": [own_plugin]},
    }  # fmt: skip
    (run / "job.yaml").write_text(json.dumps(job))
    assert own.get("group", run="a", phase="train", step=1, task="t")["rows"][0]["advantage"] is None
    assert own.get("episode", run="a", id="1.0/t/0")["reward"] == 1.0
    assert not (run / "ran").exists()


def test_damaged_metrics_are_reported_and_the_others_shown(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    run.mkdir()
    good = json.dumps({"type": "train", "step": 1, "reward": 0.5})
    (run / "metrics.jsonl").write_text(f'{good}\nnot json\n{{"type": 7}}\n{good[:-1]}')
    problems = own.get("run", run="a")["problems"]
    assert [problem[:22] for problem in problems[-2:]] == ["metrics.jsonl: line 2:", "metrics.jsonl: line 3:"]
    assert own.get("series", run="a", name="reward", phase="train")["points"] == [[1, 0.5]]


def test_a_run_without_a_journal_can_be_opened(own: runs.Studio, folder: Path) -> None:
    (folder / "a").mkdir()
    (folder / "a" / "job.yaml").write_text("model: starter\n")
    found = own.get("run", run="a")
    assert found["phases"] == {}
    assert found["problems"] == []
    assert own.get("episodes", run="a") == {"run_name": "a", "total": 0, "rows": [], "indexed": 1.0}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_read_with_an_index_elsewhere(folder: Path) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    (folder / "a").chmod(0o500)
    try:
        with runs.serving(folder) as studio:
            assert studio.get("episodes", run="a")["total"] == 1
    finally:
        (folder / "a").chmod(0o700)
    assert not (folder / "a" / ".studio").exists()


# ------------------------------------------------------------------ folders that a stranger has made


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
@pytest.mark.parametrize(
    "name",
    [
        "job.yaml",
        "episodes.jsonl",
        "metrics.jsonl",
        "feedback.jsonl",
        "running.json",
        ".studio",
        ".studio/index.sqlite",
        "tokenizer/tokenizer.json",
        "batches/step_000001.npz",
        "images",
        "images/" + "0" * 64 + ".png",
    ],
)
def test_a_run_with_links_or_pipes_is_refused_and_nothing_is_written_through_them(
    own: runs.Studio, folder: Path, tmp_path: Path, name: str, kind: str
) -> None:
    database = tmp_path / "traces.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE traces (id)")
    before = database.read_bytes()
    runs.append(folder / "innocent", runs.line("1.0/t/0"))
    runs.append(folder / "gift", runs.line("1.0/t/0"))
    path = folder / "gift" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(database if kind == "link" else tmp_path / "absent")
    (folder / "gift" / ("metrics.jsonl" if name != "metrics.jsonl" else "job.yaml")).touch()  # still a run
    began = time.monotonic()
    for where in ("run", "episodes", "log"):
        assert own.refused(where, run="gift")[0] == 403
    said = {"run": "gift", "id": "1.0/t/0", "rating": 1}
    assert own.client.post("/api/feedback", json=said).status_code == 403
    assert [row["run"] for row in own.get("runs")["runs"]] == ["innocent"]
    assert own.get("episodes", run="innocent")["total"] == 1
    assert time.monotonic() - began < 10
    assert database.read_bytes() == before and not (tmp_path / "absent").exists()


def test_a_database_of_another_program_is_not_emptied(own: runs.Studio, folder: Path, tmp_path: Path) -> None:
    """As a hard link, which looks like an ordinary file."""
    database = tmp_path / "traces.db"
    with sqlite3.connect(database) as db:
        db.execute("CREATE TABLE traces (id)")
    before = database.read_bytes()
    runs.append(folder / "gift", runs.line("1.0/t/0"))
    (folder / "gift" / ".studio").mkdir()
    (folder / "gift" / ".studio" / "index.sqlite").hardlink_to(database)
    assert own.get("episodes", run="gift")["total"] == 1
    assert database.read_bytes() == before


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    "job",
    [BOMB, "a: &a [*a]", "x: " + "[" * 5000, "x: " + "y" * (2 << 20)],
    ids=["bomb", "itself", "deep", "long"],
)
def test_a_job_that_never_ends_is_a_problem_of_its_run_alone(
    own: runs.Studio, folder: Path, job: str
) -> None:
    for name in ("innocent", "gift"):
        runs.append(folder / name, runs.line("1.0/t/0"))
    (folder / "gift" / "job.yaml").write_text(job)
    began = time.monotonic()
    states = {row["run"]: row["state"] for row in own.get("runs")["runs"]}
    assert states["gift"] == "unreadable" != states["innocent"]
    assert own.get("episodes", run="gift")["total"] == 1
    assert any(problem.startswith("job.yaml: ") for problem in own.get("run", run="gift")["problems"])
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/proc/self/maps"])
def test_tasks_are_read_of_plain_files_only(
    own: runs.Studio, folder: Path, tmp_path: Path, path: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    runs.append(folder / "gift", runs.line("1.0/t/0"))
    job = {"task": {"reader": {"type": "jsonl", "path": str(tmp_path / path)}}}
    (folder / "gift" / "job.yaml").write_text(yaml.safe_dump(job))
    began = time.monotonic()
    assert own.get("episode", run="gift", id="1.0/t/0")["id"] == "1.0/t/0"
    assert time.monotonic() - began < 10
