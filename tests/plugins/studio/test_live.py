"""A run that is still running: its files grow while they are looked at."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.patience import PATIENCE

from . import runs


def events(answer: httpx.Response) -> Iterator[dict[str, int]]:
    """The data of the events ``changed``."""
    name = ""
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: ") and name == "changed":
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.whole
def test_the_page_is_told_of_new_episodes_and_steps(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"))
    with own.client.stream("GET", "/api/live", params={"run": "a"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = events(answer)
        runs.append(run, runs.line("1.0/t/1"), runs.line("1.0/t/2"))
        assert next(told) == {"episodes": 3, "steps": 0}
        (run / "metrics.jsonl").write_text(json.dumps({"type": "train", "step": 1, "reward": 1.0}) + "\n")
        assert next(told) == {"episodes": 3, "steps": 1}
    assert own.get("episodes", run="a")["total"] == 3


@pytest.mark.whole
def test_the_page_is_told_of_what_happened_between_its_answer_and_the_moment_it_listens(
    own: runs.Studio, folder: Path
) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"))
    answers = [own.get("run", run="a"), own.get("group", run="a", phase="train", step=1, task="t")]
    runs.append(run, runs.line("1.0/t/1"))
    for answer in answers:
        with own.client.stream("GET", "/api/live", params={"run": "a", "seen": answer["seen"]}) as told:
            assert next(events(told)) == {"episodes": 2, "steps": 0}


@pytest.mark.whole
def test_the_page_is_told_that_the_process_of_a_run_was_killed(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"))
    with subprocess.Popen(["sleep", "1000"]) as process:
        runs.goes_on(run, process.pid)
        answer = own.get("run", run="a")
        assert answer["state"] == "live"
        with own.client.stream("GET", "/api/live", params={"run": "a", "seen": answer["seen"]}) as told:
            process.kill()
            process.wait()
            assert next(events(told)) == {"episodes": 1, "steps": 0}
    assert own.get("run", run="a")["state"] == "failed"


@pytest.mark.whole
def test_one_stream_tells_of_several_runs(own: runs.Studio, folder: Path) -> None:
    for name in ("a", "b"):
        runs.append(folder / name, runs.line("1.0/t/0"))
    asked = [("run", "a"), ("run", "b")]
    asked += [("seen", own.get("run", run=name)["seen"]) for name in ("a", "b")]
    with own.client.stream("GET", "/api/live", params=httpx.QueryParams(asked)) as told:
        runs.append(folder / "b", runs.line("1.0/t/1"))
        assert next(events(told)) == {"episodes": 3, "steps": 0}
    refused = own.client.get("/api/live", params={"run": ["a"] * 7})
    assert refused.status_code == 400 and "at most 6" in refused.text


def test_the_server_ends_while_pages_listen(folder: Path) -> None:
    runs.append(folder / "a", runs.line("1.0/t/0"))
    with runs.serving(folder) as studio:
        client = httpx.Client(base_url=studio.url, headers=studio.client.headers, timeout=PATIENCE)
        listening = client.send(client.build_request("GET", "/api/live", params={"run": "a"}), stream=True)
    assert list(events(listening)) == []  # the answer has ended, with the server


def test_only_the_new_part_of_a_journal_is_read(folder: Path) -> None:
    from ajet_studio.index import Index

    run = folder / "a"
    runs.append(run, *(runs.line(f"1.0/t/{n}", member=n) for n in range(50)))
    read: list[int] = []

    class Counting(Index):
        """An index that notes from where it reads."""

        def _extend(self, db: object) -> None:
            with self.reading() as found:
                row = found.execute("SELECT value FROM meta WHERE name = 'offset'").fetchone()
                read.append(row[0] if row else 0)
            super()._extend(db)  # type: ignore[arg-type]

    index = Counting(run / "episodes.jsonl", folder / "cache" / "index.sqlite")
    assert index.update()
    size = (run / "episodes.jsonl").stat().st_size
    assert index.update()  # nothing is new: nothing is read
    runs.append(run, runs.line("1.0/t/50"))
    assert index.update()
    assert read == [0, size]
    with index.reading() as db:
        assert db.execute("SELECT count(*), count(DISTINCT line) FROM episodes").fetchone()[:] == (51, 51)


def test_a_line_that_is_still_being_written_is_shown_when_it_is_whole(own: runs.Studio, folder: Path) -> None:
    whole = runs.line("1.0/t/1")
    runs.append(folder / "a", runs.line("1.0/t/0"), whole[:100])
    assert own.get("episodes", run="a")["total"] == 1
    runs.append(folder / "a", whole[100:])
    assert [row["id"] for row in own.get("episodes", run="a")["rows"]] == ["1.0/t/0", "1.0/t/1"]


def test_what_a_resumed_run_repeats_is_shown_once(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(
        run, runs.line("1.0/t/0"), runs.line("2.0/t/0", step=2), runs.line("2.1/u/0", step=2, reward=0.1)
    )
    own.get("search", run="a", q="world")
    mark = json.dumps({"type": "superseded", "from_step": 2, "keep": ["2.0/t/0"]}) + "\n"
    runs.append(run, mark, runs.line("2.1/u/0", step=2, reward=0.9))
    found = own.get("episodes", run="a")
    assert [(row["id"], row["reward"]) for row in found["rows"]] == [
        ("1.0/t/0", 1.0),
        ("2.0/t/0", 1.0),
        ("2.1/u/0", 0.9),
    ]
    assert own.get("episode", run="a", id="2.1/u/0")["reward"] == 0.9
    assert own.get("search", run="a", q="world")["total"] == 3


def test_what_a_step_did_not_use_hides_nothing_of_later_steps(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    mark = json.dumps(
        {"type": "superseded", "from_step": 1, "to_step": 1, "keep": ["1.0/t/0"], "unused": True}
    )
    lines = (runs.line("1.0/t/0"), runs.line("1.1/u/0"), runs.line("2.0/t/0", step=2), mark + "\n")
    runs.append(run, *lines)
    assert [row["id"] for row in own.get("episodes", run="a")["rows"]] == ["1.0/t/0", "2.0/t/0"]


def test_a_journal_that_was_replaced_or_cut_is_read_anew(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, *(runs.line(f"1.0/t/{n}", member=n) for n in range(5)))
    assert own.get("episodes", run="a")["total"] == 5
    lines = (run / "episodes.jsonl").read_text().splitlines(keepends=True)
    (run / "episodes.jsonl").write_text("".join(lines[:2]))
    assert own.get("episodes", run="a")["total"] == 2
    (run / "episodes.jsonl").write_text("".join(line.replace("1.0/t", "7.0/t") for line in lines[:2]))
    assert [row["id"] for row in own.get("episodes", run="a")["rows"]] == ["7.0/t/0", "7.0/t/1"]


def test_the_cache_may_be_deleted_or_damaged_at_any_time(own: runs.Studio, folder: Path) -> None:
    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"))
    assert own.get("episodes", run="a")["total"] == 1
    for file in (run / ".studio").iterdir():
        file.unlink()
    assert own.get("episodes", run="a")["total"] == 1
    for file in (run / ".studio").iterdir():
        file.write_bytes(b"not a database, but long enough to look like one" * 100)
    answers = [own.client.get("/api/episodes", params={"run": "a"}) for _ in range(3)]
    assert all("\n" not in answer.text for answer in answers)
    assert answers[-1].json()["total"] == 1


def test_a_run_that_is_deleted_while_it_is_open_is_reported(own: runs.Studio, folder: Path) -> None:
    import shutil

    run = folder / "a"
    runs.append(run, runs.line("1.0/t/0"))
    assert own.get("episode", run="a", id="1.0/t/0")["reward"] == 1.0
    shutil.rmtree(run)
    for path in ("run", "episodes", "steps", "live"):
        assert own.refused(path, run="a")[0] == 404
    assert own.refused("episode", run="a", id="1.0/t/0")[0] == 404
    assert own.get("runs")["runs"] == []
    runs.append(run, runs.line("1.0/t/5"))  # a new run of the same name
    assert own.get("episodes", run="a")["rows"][0]["id"] == "1.0/t/5"


def test_several_pages_that_open_a_run_at_once_see_the_same(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", *(runs.line(f"1.0/t/{n}", member=n) for n in range(2000)))
    totals: list[int] = []

    def look() -> None:
        with httpx.Client(base_url=own.url, headers=own.client.headers, timeout=PATIENCE) as client:
            while (found := client.get("/api/episodes", params={"run": "a"}).json())["indexed"] < 1:
                pass
            totals.append(found["total"])

    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [2000] * 8
