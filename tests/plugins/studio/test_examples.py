"""Runs of the examples that learn, in every view of the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.tiny import save_tiny_model
from tests.warm import Warm

from . import browser, runs
from .test_page import address

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = ("countdown", "frozenlake", "apps", "rubric", "learn_to_ask")
SETTINGS = {
    "train.steps": 1,
    "train.batch_size": 1,
    "rollout.group_size": 2,
    "rollout.sampling.max_tokens": 24,
    "eval.episodes": 1,
    "eval.sampling.max_tokens": 24,
    "run.dir": "runs",
}

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # test_page.py has every view, of other runs


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The browser."""
    with browser.chromium() as found:
        yield found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A tiny model for the examples' long prompts. It has learned nothing: its answers are noise."""
    folder = save_tiny_model(tmp_path_factory.mktemp("model"), tokenizer)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_an_example_opens_in_every_view(
    name: str, model: Path, chromium: Any, tmp_path: Path
) -> None:
    if name == "apps":
        pytest.importorskip("agentscope.credential")
    process = Warm(
        *("run", str(EXAMPLES / name / "job.yaml"), "--model", str(model)),
        *(part for key, value in SETTINGS.items() for part in ("--set", f"{key}={value}")),
        cwd=tmp_path,
    )
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, output
    with runs.serving(tmp_path / "runs") as studio, browser.Reader(chromium.new_page()).at(studio) as reader:
        check_views(reader)


def check_views(reader: browser.Reader) -> None:
    """Every view of the only run, with what it must show."""
    (run,) = reader.studio.get("runs")["runs"]
    assert (run["state"], run["steps"]) == ("finished", 1)
    rows = reader.studio.get("episodes", run=run["run"], phase="train")["rows"]
    assert len(rows) == 2
    about = {"run": run["run"]}
    step = {**about, "phase": "train", "step": 1}
    headings = {
        address("/run", **about): run["name"],
        address("/step", **step): "step 1",
        address("/group", **step, task=rows[0]["task"]): f"Group of {rows[0]['task']}",
        address(
            "/versus", *(pair for row in rows for pair in (("run", run["run"]), ("id", row["id"])))
        ): None,
        **{
            address("/run", **about, tab=tab): run["name"]
            for tab in ("steps", "episodes", "counters", "settings", "log")
        },
    }
    for row in rows:
        for tab in ("chat", "tokens", "tree"):
            headings[address("/episode", **about, id=row["id"], tab=tab)] = f"Episode {row['id']}"
    for path, heading in headings.items():
        reader.open(path)
        (found,) = reader.page.locator("h1").all_text_contents()
        assert found != "This cannot be shown" and heading in (None, found), path
        assert reader.nodes() < browser.MOST_NODES
    found = reader.studio.get("episode", **about, id=rows[0]["id"])
    assert found["calls"] and found["messages"][0] and found["lanes"][0]["timelines"]
