"""Reading a run folder: which run, which episodes, and those of a run that still goes on or was killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.reports.folder import find_run
from ajet.rollout.episode import Episode
from ajet.rollout.journal import episode_to_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.types import AjetError, ConfigError

from .conftest import Folder, blank, squeezing

IDS = ["1.0/a/0", "1.0/a/1", "11.0/a/0", "1.1/bird/0"]


@pytest.fixture
def four(folder: Folder) -> Folder:
    return folder.write([blank(name) for name in IDS])


# ------------------------------------------------------------------ which run


def test_a_run_folder_is_itself_and_a_folder_of_runs_gives_its_newest(four: Folder, tmp_path: Path) -> None:
    assert find_run(four.dir) == four.dir
    older = tmp_path / "runs" / "20991231-235959"
    RunRecorder(older).close()
    os.utime(older / JOURNAL, (0, 0))
    (tmp_path / "runs" / "notes").mkdir()
    check = tmp_path / "runs" / "20991231-235959-check"
    RunRecorder(check).close()
    assert find_run(tmp_path / "runs") == four.dir, (
        "of those that trained what was started last, not what sorts last"
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [("nope", "nope: no such folder"), ("", "neither it nor a folder in it has an episodes.jsonl")],
)
def test_what_is_no_run_is_told_in_one_line(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_run(tmp_path / name)


# ------------------------------------------------------------------ which episodes


def test_an_episode_is_found_by_its_id_its_beginning_or_any_unique_part(four: Folder) -> None:
    run = four.read()
    found = [run.find(text).id for text in ("1.0/a/0", "11", "bird", "a/1")]
    assert found == ["1.0/a/0", "11.0/a/0", "1.1/bird/0", "1.0/a/1"]


@pytest.mark.parametrize(
    ("was", "now"),
    [('"chats": {"', '"chats": {"<b>'), ('"calls": [{', '"calls": [3, {')],
)
def test_an_episode_that_no_run_has_written_is_told_in_one_line(
    folder: Folder, live: Callable[..., list[Episode]], was: str, now: str
) -> None:
    folder.write(live(squeezing))
    journal = folder.dir / JOURNAL
    assert was in journal.read_text()
    journal.write_text(journal.read_text().replace(was, now, 1))
    with pytest.raises(AjetError, match="not a line of this version's journal"):
        run = folder.read()
        run.episode(run.entries[0])


def test_an_ambiguous_part_lists_some_ids(four: Folder) -> None:
    with pytest.raises(
        ConfigError, match=r"1\.0: 2 episodes .* 1\.0/a/0, 1\.0/a/1\. Use a longer part of the id\."
    ):
        four.read().find("1.0")


def test_an_unknown_episode_is_told_with_the_nearest(four: Folder) -> None:
    with pytest.raises(ConfigError, match=r"1\.1/brid/0: no such episode .*; did you mean '1\.1/bird/0'"):
        four.read().find("1.1/brid/0")


def test_a_run_without_episodes_says_that_none_has_ended(folder: Folder) -> None:
    with pytest.raises(ConfigError, match="No episode has ended yet"):
        folder.write([]).read().find("x")


# ------------------------------------------------------------------ a living file


@pytest.mark.parametrize("cut", [1, 30])
def test_a_last_line_that_is_being_written_is_passed_over(four: Folder, cut: int) -> None:
    path = four.dir / JOURNAL
    path.write_bytes(path.read_bytes()[:-cut])
    assert [e.id for e in four.read().entries] == IDS[:3]


def test_a_damaged_line_in_the_middle_is_named_by_file_and_line(four: Folder) -> None:
    path = four.dir / JOURNAL
    path.write_text(path.read_text().replace('{"type"', "<", 1))
    with pytest.raises(AjetError, match=rf"{JOURNAL}:1: is not JSON"):
        four.read()


def test_a_journal_of_another_version_is_told_in_one_line(four: Folder) -> None:
    path = four.dir / JOURNAL
    path.write_text(path.read_text().replace('"breaks"', '"brakes"'))
    with pytest.raises(AjetError, match=rf"{JOURNAL}:1: not a line of this version's journal"):
        four.read()


def test_superseded_lines_are_ignored_as_the_recorder_ignores_them(folder: Folder) -> None:
    recorder = RunRecorder(folder.dir)
    for step in (1, 2, 3):
        for member in (0, 1):
            recorder.episode(blank(f"{step}.0/a/{member}"), phase="train", step=step)
    recorder.supersede(2, {"2.0/a/1": None, "3.0/a/0": None})
    recorder.episode(blank("2.0/a/0", reward=5.0), phase="train", step=2)
    recorder.supersede(3, {})
    recorder.close()
    entries = folder.read().entries
    expected = list(live_lines(folder.dir / JOURNAL))
    assert [(e.id, e.reward) for e in entries] == [(line["id"], line["reward"]) for line in expected]
    assert [e.id for e in entries] == ["1.0/a/0", "1.0/a/1", "2.0/a/1", "2.0/a/0"]
    assert folder.read().episode(entries[-1]).reward == 5.0, "read from the place of the live line"


def test_an_episode_is_read_back_whole(folder: Folder, live: Any) -> None:
    (episode,) = live()
    run = folder.write([blank("1.0/first/0"), episode]).read()
    again = run.episode(run.entries[1])
    line = episode_to_json(episode, phase="train", step=1)
    assert episode_to_json(again, phase="train", step=1) == {**line, "seconds": again.seconds}
    entry = run.entries[1]
    assert entry.calls == 3
    assert entry.sampled == sum(len(c.generation.token_ids) for c in episode.record.calls)
    assert entry.trainable == episode.record.sampled_tokens


def test_a_journal_that_was_replaced_while_it_was_read_is_an_error(four: Folder) -> None:
    run = four.read()
    (four.dir / JOURNAL).unlink()
    four.write([blank("1.0/other/0")])
    with pytest.raises(AjetError, match="changed while it was being read"):
        run.episode(run.entries[0])
