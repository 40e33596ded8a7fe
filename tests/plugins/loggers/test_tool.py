"""What the loggers of experiment trackers share: sampling, the thread that sends, missing packages."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ajet import ConfigError, Task
from ajet.interfaces.events import EpisodeEnd, RunStart
from ajet.types import Metrics
from ajet_loggers import tool as tool_module
from ajet_loggers.episodes import COLUMNS, LONGEST, EpisodeSample, Row, row
from ajet_loggers.tool import Destination, Tool, flat, keep_id, known_id
from tests.core.test_hooks import Training, training  # noqa: F401

from .conftest import Run


class Lists:
    """A destination that keeps what arrives, and from which thread."""

    def __init__(self) -> None:
        self.arrived: list[tuple[Any, ...]] = []
        self.threads: set[str] = set()

    def log(self, step: int, metrics: Metrics) -> None:
        self._arrive("log", step)

    def episodes(self, phase: str, step: int, rows: Sequence[Row]) -> None:
        self._arrive("episodes", phase, step, len(rows))

    def checkpoint(self, step: int, path: Path) -> None:
        self._arrive("checkpoint", step)

    def end(self, failed: bool) -> None:
        self._arrive("end", failed)

    def _arrive(self, *what: Any) -> None:
        self.arrived.append(what)
        self.threads.add(threading.current_thread().name)


class ToLists(Tool):
    """Logs to lists."""

    name = "lists"
    package = "json"
    lists: ClassVar[Lists]
    refused: ClassVar[Iterator[Exception]]

    def where(self) -> str:
        return "lists"

    def connect(self, event: RunStart) -> Destination:
        for error in self.refused:
            raise error
        return self.lists


@pytest.fixture
def lists(training: Training) -> Lists:  # noqa: F811
    ToLists.lists, ToLists.refused = Lists(), iter(())
    training.attach("lists", ajet_plugins=lambda: [ToLists])
    return ToLists.lists


def event(number: int, **fields: Any) -> EpisodeEnd:
    fields = {"phase": "train", "step": 1, "reward": 1.0, "run_dir": Path(), **fields}
    return EpisodeEnd(id=f"t{number}#0", task=Task(id=f"t{number}", query="?"), **fields)


# ------------------------------------------------------------------ what arrives, and when


@pytest.mark.whole
def test_everything_arrives_in_order_from_one_thread(run: Run, lists: Lists) -> None:
    run("lists")
    kinds = [what[0] for what in lists.arrived]
    assert kinds.count("log") == 5 and kinds.count("episodes") == 5 and kinds.count("checkpoint") == 2
    assert lists.arrived[-1] == ("end", False)
    assert ("episodes", "train", 2, 4) in lists.arrived and ("episodes", "validation", 0, 2) in lists.arrived
    assert lists.threads == {"ajet logger lists"}
    steps = [what[1] for what in lists.arrived if what[0] == "log"]
    assert steps == sorted(steps)


@pytest.mark.whole
def test_no_episodes_are_taken_if_the_job_wants_none(run: Run, lists: Lists) -> None:
    run({"type": "lists", "episodes": 0})
    assert {what[0] for what in lists.arrived} == {"log", "checkpoint", "end"}


def test_a_tool_that_is_reachable_only_later_receives_the_rest(
    run: Run, lists: Lists, said: Callable[[], list[str]]
) -> None:
    ToLists.refused = iter([OSError("down"), OSError("down")])
    run("lists")
    assert said() == [
        "logger lists: sending to lists failed (OSError: down). The run continues.",
        "logger lists: 1 of 12 records were not sent to lists",
    ]
    assert lists.arrived[-1] == ("end", False)


def test_a_failed_run_is_marked_as_failed(run: Run, lists: Lists) -> None:
    with pytest.raises(Exception, match="all 2 episodes failed"):
        run("lists", workflow="fails")
    assert lists.arrived == [("episodes", "validation", 0, 2), ("end", True)]


# ------------------------------------------------------------------ the sample


def test_a_sample_is_as_large_as_it_may_be_and_does_not_depend_on_the_order() -> None:
    events = [event(number, step=step) for step in (1, 2) for number in range(50)]
    forward, backward = EpisodeSample(4), EpisodeSample(4)
    for one in events:
        forward.add(one)
    for one in reversed(events):
        backward.add(one)
    taken = forward.take()
    assert sorted(taken) == sorted(backward.take()) and not forward.take()
    assert [(phase, step, len(rows)) for phase, step, rows in taken] == [("train", 1, 4), ("train", 2, 4)]
    first = {cells[0] for cells in taken[0][2]}
    assert first != {f"t{number}#0" for number in range(4)}, "not those that end first"


def test_episodes_of_the_next_step_wait_for_it() -> None:
    sample, whole = EpisodeSample(2), EpisodeSample(2)
    for one in (event(1, step=1), event(3, step=2), event(1, step=2)):
        sample.add(one)
    assert [(step, len(rows)) for _, step, rows in sample.take(1)] == [(1, 1)]
    for number in (5, 6):
        sample.add(event(number, step=2))
    for number in (1, 3, 5, 6):
        whole.add(event(number, step=2))
    assert sample.take(2) == whole.take() and not sample.take()


def test_a_row_has_the_longest_chat_and_the_response() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": [{"type": "text", "text": "2 + 2"}]},
        {"role": "assistant", "content": None, "reasoning_content": "A sum.", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
    ]
    cells = dict(zip(COLUMNS, row(event(1, messages=[chat[:1], chat], response={"answer": 4})), strict=True))
    assert cells["messages"] == (
        "[user]\n2 + 2\n\n"
        '[assistant]\n<think>A sum.</think>\n[{"id": "c", "type": "function", "function": {"name": "add", '
        '"arguments": "{}"}}]\n\n[tool]\n4'
    )
    assert (cells["task"], cells["response"], cells["reward"]) == ("t1", '{"answer": 4}', 1.0)


def test_texts_are_cut_and_have_only_characters_that_tools_can_store() -> None:
    whole = row(event(1, response="x" * (LONGEST + 7), error="e", failure="half \ud83d"))
    assert whole[-1] == "x" * LONGEST + "… (7 more characters)" and whole[4] == "half ?"
    assert row(event(1, response="a\0b"))[-1] == "ab"


# ------------------------------------------------------------------ ids, keys, packages


def test_ids_of_several_tools_are_kept_in_the_run_folder(tmp_path: Path) -> None:
    assert known_id(tmp_path, "wandb") is None
    keep_id(tmp_path, "wandb", "1")
    keep_id(tmp_path, "mlflow", "2")
    keep_id(tmp_path, "wandb", "3")
    assert (known_id(tmp_path, "wandb"), known_id(tmp_path, "mlflow")) == ("3", "2")


def test_a_configuration_is_flattened_by_dotted_keys() -> None:
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


@pytest.mark.parametrize("name", ["wandb", "mlflow", "swanlab", "trackio"])
def test_a_missing_package_is_one_line_with_the_extra(
    run: Run, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_module.importlib.util, "find_spec", lambda module: None)
    install = rf"{name} is not installed; it comes with pip install 'ajet-plugin-loggers\[{name}\]'"
    with pytest.raises(ConfigError, match=rf"run\.loggers\.0.*{install}") as raised:
        run(name)
    assert "\n" not in str(raised.value)


def test_a_folder_that_has_the_name_of_a_package_is_not_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "absent_tool").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="absent_tool is not installed"):
        tool_module.needs("absent_tool", "absent")


def test_importing_the_plugin_imports_no_tool() -> None:
    code = (
        "import ajet_loggers, sys; tools = ('wandb', 'mlflow', 'swanlab', 'trackio', 'tensorboard', 'opentelemetry', 'google');"
        "print([m for m in sys.modules if m.startswith(tools)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
