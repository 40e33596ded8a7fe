"""What all readers over a source share: which tasks are taken, in what order, how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ajet import ConfigError
from ajet.interfaces.reader import read_all
from ajet_readers import JsonLines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Forty tasks of four levels."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(
        "".join(
            json.dumps({"id": f"t{i}", "query": "q", "level": i % 4, "of": {"kind": "ab"[i % 2]}}) + "\n"
            for i in range(40)
        )
    )
    return file


def ids(path: Path, **fields: Any) -> list[str]:
    return [task.id for task in JsonLines(path=path, **fields).tasks()]


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ({"level": 3}, lambda i: i % 4 == 3),
        ({"level": [0, 2]}, lambda i: i % 4 in (0, 2)),
        ({"level": {"min": 2}}, lambda i: i % 4 >= 2),
        ({"level": {"min": 1, "max": 2}}, lambda i: i % 4 in (1, 2)),
        ({"level": {"max": 1}, "of.kind": "b"}, lambda i: i % 4 == 1),
        ({"of": {"kind": "a"}}, lambda i: i % 2 == 0),
    ],
)
def test_where_takes_the_tasks_that_match_all_its_fields(path: Path, where: Any, wanted: Any) -> None:
    assert ids(path, where=where) == [f"t{i}" for i in range(40) if wanted(i)]


def test_a_field_of_where_that_no_task_has_is_an_error(path: Path) -> None:
    with pytest.raises(ConfigError, match=r"where\.levle: no task of the reader 'jsonl'.*'level', 'of'"):
        ids(path, where={"levle": 1})


@pytest.mark.parametrize("wanted", [{}, {"min": 1, "most": 2}])
def test_a_range_of_where_has_min_or_max(path: Path, wanted: Any) -> None:
    with pytest.raises(ValidationError, match="a range has `min`, `max` or both"):
        JsonLines(path=path, where={"level": wanted})


def test_the_parts_are_disjoint_and_together_everything(path: Path) -> None:
    train, held = (ids(path, part=part, hold_out=0.25) for part in ("train", "held_out"))
    assert not set(train) & set(held) and len(train) + len(held) == 40
    assert 3 <= len(held) <= 17


def test_a_task_stays_in_its_part_when_tasks_are_added(path: Path) -> None:
    held = set(ids(path, part="held_out", hold_out=0.25))
    with path.open("a") as file:
        file.writelines(json.dumps({"id": f"n{i}", "query": "q"}) + "\n" for i in range(40))
    later = ids(path, part="held_out", hold_out=0.25)
    assert {i for i in later if i.startswith("t")} == held


@pytest.mark.parametrize("fields", [{"part": "train"}, {"hold_out": 0.1}])
def test_a_part_needs_a_share_and_a_share_a_part(path: Path, fields: Any) -> None:
    with pytest.raises(ValidationError, match="go together"):
        JsonLines(path=path, **fields)


def test_a_seed_orders_the_tasks_and_the_same_seed_equally(path: Path) -> None:
    first, again, other = ids(path, shuffle=1), ids(path, shuffle=1), ids(path, shuffle=2)
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(ids(path))


def test_the_limit_counts_what_was_chosen_and_shuffled(path: Path) -> None:
    assert ids(path, where={"level": 3}, shuffle=1, limit=3) == ids(path, where={"level": 3}, shuffle=1)[:3]


def test_repeats_have_ids_of_their_own(path: Path) -> None:
    assert ids(path, limit=2, repeat=3) == ["t0", "t0#2", "t0#3", "t1", "t1#2", "t1#3"]


def test_duplicates_are_dropped_on_request_only(tmp_path: Path) -> None:
    path = tmp_path / "twice.jsonl"
    path.write_text('{"query": "q"}\n{"query": "r"}\n{"query": "q"}\n')
    with pytest.raises(ConfigError, match="duplicate task"):
        read_all(JsonLines(path=path), "task.reader")
    assert [t.query for t in read_all(JsonLines(path=path, drop_duplicates=True), "task.reader")] == [
        "q",
        "r",
    ]
