"""The READMEs of the examples that learn show what their `learned.json` holds."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.pages import page, tool

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/learned.json"))
script = tool("learning_curves")


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_picture_and_the_table_are_what_the_script_writes(name: str) -> None:
    seeds = json.loads((EXAMPLES / name / "learned.json").read_text())
    again = f"run: python tools/learning_curves.py examples/{name}"
    assert (EXAMPLES / name / "curve.svg").read_text() == script.picture(name, seeds), again
    shown = page(f"examples/{name}/README.md")
    assert script.with_table(shown, seeds) == shown, again
    assert "(curve.svg)" in shown


def test_every_seed_has_learned(name: str) -> None:
    learn = tool("learn", "examples")
    seeds = json.loads((EXAMPLES / name / "learned.json").read_text())
    assert list(seeds) == (["0", "1", "2"] if name in learn.NAMES else ["0"])
    for found in seeds.values():
        assert found["gain"] >= learn.GAINS.get(name, learn.GAIN) and found["standard_errors"] >= learn.ERRORS


def test_a_curve_has_a_point_for_each_tenth_and_a_dot_for_each_end() -> None:
    found = {"before": 0.0, "after": 1.0, "gain": 1.0, "curve": [0.0, 0.5, 1.0]}
    drawn = ElementTree.fromstring(script.picture("toy", {"0": found}))
    (line,) = [element for element in drawn if element.tag.endswith("polyline")]
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    assert [x for x, _ in points] == sorted(x for x, _ in points) and len(points) == 3
    assert [y for _, y in points] == [script.up(reward) for reward in (0.0, 0.5, 1.0)]
    dots = [element for element in drawn if element.tag.endswith("circle")]
    assert [float(dot.attrib["cy"]) for dot in dots] == [script.up(0.0), script.up(1.0)]
