"""The examples that learn: no held-out task is given away, and their agents work from the first to the last line."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.interfaces.workflow import load_object
from ajet.job.models import find_recipe
from tests.tiers import fast

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("countdown", "frozenlake", "rubric", "learn_to_ask", "math_code", "coding")
ANSWERS = {
    "countdown": [{"say": "1 + 2 - 3"}],
    "frozenlake": [{"say": "down"}],
    "rubric": [{"say": "Dear Ada, we are sorry. We will send a new lamp. Kind regards"}],
    "learn_to_ask": [{"turn": 2, "say": "You have migraine."}, {"say": "Do you have nausea?"}],
    "math_code": [{"say": "42"}],
    "coding": [
        {"turn": 0, "call": {"name": "shell", "arguments": {"command": "python test.py"}}},
        {"say": "Done."},
    ],
}
"""What a scripted model says."""


@pytest.fixture(autouse=True)
def modules_of_one_example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples, and jobs of other tests, have modules of the same name, such as `agent`: those of the example come first."""
    name = request.node.callspec.params.get("name")
    for module in {path.stem for path in EXAMPLES.glob("*/*.py")} & set(sys.modules):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(EXAMPLES / str(name))


def reader(name: str, **fields: Any) -> Any:
    """The example's reader."""
    job = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    return load_object(f"{EXAMPLES / name}/{job['task']['reader']['type']}", "task.reader.type")(**fields)


@pytest.mark.whole
@pytest.mark.parametrize("name", fast({1, 2, 3, 5}, NAMES))  # the others import reasoning-gym, for seconds
def test_tasks_are_reproducible_distinct_and_those_held_out_are_in_no_transcript(name: str) -> None:
    train, held = (list(reader(name, count=200, held_out=out).tasks()) for out in (False, True))
    assert [t.id for t in train] == [t.id for t in reader(name, count=200).tasks()]
    assert [t.id for t in train] != [t.id for t in reader(name, count=200, seed=1).tasks()]
    ids = {t.id for t in train}
    assert len(ids) == 200 and not ids & {t.id for t in held}
    recipe = find_recipe(f"{EXAMPLES / name / 'recipe.py'}:{recipe_name(name)}")
    rng = random.Random(0)
    given_away = {
        task
        for phase in recipe.phases()  # type: ignore[union-attr]
        for make in (phase.echo, phase.make)
        if make
        for _ in range(500)
        for task in make(rng).tasks
    }
    everything = {t.id for t in reader(name, count=250, seed=3, held_out=True).tasks()}
    assert len(given_away) > 200 and not given_away & (everything | {t.id for t in held})


def recipe_name(name: str) -> str:
    """The class that the example's job names."""
    job = yaml.safe_load((EXAMPLES / name / "job.yaml").read_text())
    return str(job["model"].partition(":")[2])


@pytest.mark.whole
@pytest.mark.e2e
@pytest.mark.parametrize("name", fast({2}, NAMES))
def test_the_agent_works_with_a_scripted_model(
    name: str, command: Callable[..., str], tmp_path: Path
) -> None:
    script = tmp_path / "answers.yaml"
    script.write_text(yaml.safe_dump(ANSWERS[name]))
    command("check", str(EXAMPLES / name / "job.yaml"), "--answers", str(script))
