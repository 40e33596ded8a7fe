"""`check_reader` notices a reader that breaks its word."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError
from ajet.testing.readers import check_reader

READERS = '''
import itertools
import os
from ajet import Reader, Task

CALLS = itertools.count()


class Whole(Reader):
    """Nothing is wrong with it."""
    name = "whole"

    def tasks(self):
        print("reading")
        return [Task("a", "1 + 1"), Task("b", "", ({"role": "user", "content": "hi"},))]


class Repeats(Whole):
    def tasks(self):
        return [Task("a", "1"), Task("a", "2")]


class Nothing(Whole):
    def tasks(self):
        return []


class Counts(Whole):
    def tasks(self):
        return [Task(f"t{next(CALLS)}", "q")]


class Grows(Whole):
    def tasks(self):
        return [Task(f"t{i}", "q") for i in range(1 + next(CALLS))]


class InTheOrderOfASet(Whole):
    def tasks(self):
        return [Task(name, "q") for name in {f"task {i}" for i in range(20)}]


class ByHash(Whole):
    def tasks(self):
        return [Task(str(hash("q")), "q")]


class ReadsItsProcess(Whole):
    def tasks(self):
        return [Task("t", "q", metadata={"pid": os.getpid()})]


class OnlyHere(Whole):
    def tasks(self):
        if os.getpid() != PID:
            raise RuntimeError("not here")
        return [Task("t", "q")]


class Blank(Whole):
    def tasks(self):
        return [Task(" ", "q")]


class Empty(Whole):
    def tasks(self):
        return [Task("t")]


class NoJson(Whole):
    def tasks(self):
        return [Task("t", "q", metadata={"answer": {1, 2}})]
'''


@pytest.fixture
def readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import os

    (tmp_path / "my_faulty_readers.py").write_text(f"{READERS}\nPID = {os.getpid()}\n")
    monkeypatch.syspath_prepend(tmp_path)
    import my_faulty_readers  # type: ignore[import-not-found]

    yield my_faulty_readers
    del sys.modules["my_faulty_readers"]


@pytest.mark.whole
def test_a_reader_without_fault_passes(readers: Any) -> None:
    assert [task.id for task in check_reader(readers.Whole())] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("Repeats", "duplicate task id 'a'"),
        ("Nothing", "yielded no task"),
        ("Counts", "a second reading returned another task at index 0: 't1' instead of 't0'"),
        ("Grows", "a second reading returned 2 tasks instead of 1"),
        ("InTheOrderOfASet", "a copy in another process returned another task"),
        pytest.param("ByHash", "a copy in another process returned another task", marks=pytest.mark.slow),
        pytest.param(
            "ReadsItsProcess", "a copy in another process returned another task", marks=pytest.mark.slow
        ),
        ("OnlyHere", "it cannot be read in another process: RuntimeError: not here"),
        ("Blank", "its id is not a non-empty text"),
        ("Empty", "it is empty"),
        ("NoJson", "cannot be written as JSON"),
    ],
)
def test_a_faulty_reader_is_noticed(readers: Any, name: str, fault: str) -> None:
    with pytest.raises((AssertionError, ConfigError), match=fault):
        check_reader(getattr(readers, name)())
