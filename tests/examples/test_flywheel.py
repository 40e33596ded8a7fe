"""examples/flywheel: a whole round with a tiny model: serve, rate and correct, make tasks, train, and serve what was trained."""

from __future__ import annotations

import importlib
import json
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from ajet.cli import run_program
from ajet.rollout.checkpoints import checkpoints
from ajet.rollout.recorder import JOURNAL, live_lines
from tests.tiny import save_tiny_model
from tests.warm import Warm

EXAMPLE = Path(__file__).parents[2] / "examples" / "flywheel"
MODULES = ("flywheel", "agent", "users", "writer")


@pytest.fixture
def example() -> Iterator[Any]:
    """The modules of the example."""
    before = {name: sys.modules.pop(name, None) for name in MODULES}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    for name, module in before.items():
        sys.modules.pop(name, None)
        if module:
            sys.modules[name] = module


class Served(Warm):
    """The explorer, in a process of its own that starts at once."""

    def __init__(self, command: list[str], **_: Any) -> None:
        super().__init__(*command[3:], cwd=Path.cwd())
        self.command = command
        started.append(self)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


started: list[Served] = []


@pytest.mark.whole
def test_a_round_serves_collects_makes_tasks_trains_and_serves_the_checkpoint(
    example: Any, tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    model = save_tiny_model(tmp_path / "model", tokenizer)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example.flywheel, "subprocess", SimpleNamespace(Popen=Served))
    options = f"--rounds 1 --requests 24 --variations 12 --steps 1 --model {model} --folder turned"
    monkeypatch.setattr(sys, "argv", ["flywheel.py", *options.split()])
    started.clear()
    example.flywheel.main()
    assert [process.poll() is not None for process in started] == [True, True], "both explorers have ended"
    said = capsys.readouterr().out
    shares = json.loads(said.splitlines()[-1])["acceptance"]
    assert len(shares) == 2 and all(0 <= share <= 1 for share in shares)

    (run_dir,) = (tmp_path / "turned" / "runs").iterdir()
    trained = [line for line in live_lines(run_dir / JOURNAL) if line["phase"] == "train"]
    assert len(trained) == 16 * 8 and {line["step"] for line in trained} == {1}
    assert run_program(["audit", str(run_dir)]) == 0
    tasks = [json.loads(line) for line in (run_dir / "given_reader.jsonl").read_text().splitlines()]
    rated = example.flywheel.rated_tasks(tmp_path / "turned" / "round0.db")
    asked = {example.users.question(random.Random(f"0/{n}"))[0] for n in range(24)}
    assert 4 <= len(rated) <= 20 and {task["query"] for task in rated} <= asked
    assert f"round 0: training on {len(tasks)} tasks" in said
    queries = [task["query"] for task in tasks]
    assert len(set(queries)) == len(queries) > len(rated), "the writer has added tasks that are new"
    assert started[1].command[5] == str(checkpoints(run_dir)[-1]), (
        "the checkpoint is served in the next round"
    )


def test_users_correct_what_they_do_not_like_and_are_wrong_at_times(example: Any) -> None:
    draws = [example.users.question(random.Random(n)) for n in range(200)]
    for asked, answer in draws:
        a, sign, b = asked.removeprefix("What is ").removesuffix("?").split()
        assert int(answer) == (int(a) - int(b) if sign == "-" else int(a) + int(b)) >= 0
    assert example.agent.last_number("It is 3 - 12") == "12" and example.agent.last_number(None) is None


def test_the_job_leaves_to_the_program_what_it_gives(example: Any) -> None:
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    assert "steps" not in job["train"] and job["workflow"] == "agent.py:run"
