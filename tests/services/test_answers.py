"""The store of paid answers: what it keeps, after a kill too, and who may open it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ajet import AjetError
from ajet.services.answers import AnswerStore


def test_answers_are_kept_half_a_surrogate_pair_too(tmp_path: Path) -> None:
    for _ in range(2):
        with AnswerStore(tmp_path / "answers.sqlite") as store:
            if store.get("key") is None:
                store.put("key", "\ud800")
            assert store.get("key") == "\ud800"


def test_in_memory_they_are_kept_until_it_is_closed() -> None:
    with AnswerStore(None) as store:
        store.put("key", "answer")
        assert store.get("key") == "answer" and store.get("other") is None


def test_nothing_is_created_before_it_is_used(tmp_path: Path) -> None:
    with AnswerStore(tmp_path / "cache" / "answers.sqlite"):
        assert not (tmp_path / "cache").exists()


def test_an_answer_that_a_kill_cut_off_is_lost_alone(tmp_path: Path) -> None:
    (tmp_path / "cut").mkdir()
    with AnswerStore(tmp_path / "a.sqlite", exclusive=True) as store:
        for key in ("one", "two"):
            store.put(key, "answer")
        for suffix, end in (("", None), ("-wal", -10)):
            content = (tmp_path / f"a.sqlite{suffix}").read_bytes()[:end]
            (tmp_path / "cut" / f"a.sqlite{suffix}").write_bytes(content)
    with AnswerStore(tmp_path / "cut" / "a.sqlite") as store:
        assert store.get("one") == "answer" and store.get("two") is None


def test_two_may_share_a_file_unless_one_is_exclusive(tmp_path: Path) -> None:
    file = tmp_path / "answers.sqlite"
    with AnswerStore(file) as first, AnswerStore(file) as second:
        first.put("key", "answer")
        assert second.get("key") == "answer"
    with AnswerStore(file, exclusive=True) as first, AnswerStore(file, exclusive=True) as second:
        first.put("key", "answer")
        with pytest.raises(AjetError, match=r"answers.sqlite: another process is writing to it"):
            second.get("key")
