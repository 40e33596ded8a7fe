"""Plugins that a job names by their place in code, without a package."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from ajet import ConfigError, Task
from ajet.interfaces.reader import DrawnReader, Reader, read_all
from ajet.job.config import Layers
from ajet.job.prepare import prepare, resolved_yaml
from ajet.testing.readers import check_reader

MINE = '''
from ajet import Filter, Task, WorkflowOutput
from ajet.interfaces.reader import DrawnReader


class Sums(DrawnReader):
    """Sums."""

    name = "sums"

    def draw(self, rng):
        a = rng.randrange(0, 20, 2) + self.held_out
        return Task(f"{a}", f"{a} + 1 =", metadata={"answer": str(a + 1)})


class Nothing(Filter):
    """Drops nothing."""

    name = "nothing"

    def drop(self, record, calls):
        return []


def not_a_reader():
    pass


async def agent(task):
    return WorkflowOutput(reward=1.0)
'''


def layers(folder: Path, **keys: object) -> Layers:
    (folder / "mine.py").write_text(MINE)
    job = {
        "task": {"reader": {"type": "mine.py:Sums", "count": 3}},
        "workflow": "mine.py:agent",
        "backbone": "debug",
        **keys,
    }
    found = Layers()
    found.add(job, str(folder / "job.yaml"), folder)
    return found


def test_readers_and_filters_may_be_named_by_file_and_a_resumed_run_finds_them(tmp_path: Path) -> None:
    job = prepare(layers(tmp_path, train={"filters": [{"type": "mine.py:Nothing"}]}))
    assert len(job.tasks) == 3 and [f.name for f in job.filters] == ["nothing"]
    kept = yaml.safe_load(resolved_yaml(job))
    assert kept["task"]["reader"]["type"] == f"{tmp_path}/mine.py:Sums"
    assert kept["train"]["filters"][0]["type"] == f"{tmp_path}/mine.py:Nothing"


@pytest.mark.parametrize(
    ("named", "told"),
    [
        (
            "mine.py:not_a_reader",
            r"task\.reader\.type \S+/mine\.py:not_a_reader: is not a reader; name a subclass of ajet\.Reader",
        ),
        ("mine.py:Nothing", "is not a reader"),
        ("mine.py:Sum", "has no 'Sum'.*Sums"),
        ("gone.py:Sums", "no such file"),
    ],
)
def test_what_is_no_reader_is_refused_by_name(tmp_path: Path, named: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prepare(layers(tmp_path, task={"reader": {"type": named, "count": 3}}))


def test_its_fields_are_checked_like_anyones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"task\.reader\.seeed: unknown key.*seed"):
        prepare(layers(tmp_path, task={"reader": {"type": "mine.py:Sums", "count": 3, "seeed": 1}}))


class Drawn(DrawnReader):
    """Ten tasks on each side."""

    name = "drawn"

    def draw(self, rng: random.Random) -> Task:
        number = 2 * rng.randrange(10) + self.held_out
        return Task(str(number), f"{number}")


@pytest.mark.whole
def test_drawn_tasks_are_distinct_reproducible_and_of_one_side() -> None:
    sides = [
        {task.id for task in tasks}
        for tasks in (check_reader(Drawn(count=10)), Drawn(count=10, held_out=True).tasks())
    ]
    assert sides[0] == {str(n) for n in range(0, 20, 2)} and sides[1] == {str(n) for n in range(1, 20, 2)}
    orders = [[task.id for task in Drawn(count=10, seed=seed).tasks()] for seed in (0, 1)]
    assert orders[0] != orders[1]


def test_more_tasks_than_there_are_is_an_error() -> None:
    reader: Reader = Drawn(count=11)
    with pytest.raises(ConfigError, match="count: there are hardly more than 10 different tasks"):
        read_all(reader, "task.reader")
