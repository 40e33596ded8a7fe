"""The tuning of prompts in docs/before-you-train.md: its example runs as it stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet.interfaces.prompts import read_prompts
from ajet_prompts.backbone import PromptSearch
from tests.pages import blocks, files, page
from tests.program import Program

from . import hidden

PAGE = page("docs/before-you-train.md")


@pytest.fixture
def example(folder: Path, models: hidden.Models, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files; both models are at another address, and say what the page's would."""
    for name, content in files(PAGE).items():
        (folder / name).write_text(content.replace("http://localhost:8001/v1", models.url))
    proposal = read_prompts(_shown(folder))["rules"]

    def follow(instructions: str, last: str) -> str:
        a, b = 5, 4
        if last == "2":
            a, b = 2, 2
        return str(a + b) if "nothing else" in instructions else f"The sum of both of the numbers is {a + b}."

    monkeypatch.setattr(hidden, "follow", follow)
    monkeypatch.setattr(hidden, "propose", lambda asked, draw: f"```\n{proposal}\n```")
    return folder


def _shown(folder: Path) -> Path:
    """The file of texts that the page shows."""
    (shown,) = [code for code in blocks(PAGE, "yaml") if code.startswith("# Texts for")]
    file = folder / "shown.yaml"
    file.write_text(shown)
    return file


@pytest.mark.whole
def test_the_example_runs_and_writes_the_file_that_the_page_shows(
    example: Path, ajet: Program, models: hidden.Models
) -> None:
    tasks = [json.loads(line) for line in (example / "validation.jsonl").read_text().splitlines()]
    (example / "tasks.jsonl").write_text("\n".join(json.dumps(task) for task in tasks))
    outcome = ajet("tune-prompt", "job.yaml", "--output", "prompts.yaml")
    assert outcome.code == 0, outcome.err
    assert (example / "prompts.yaml").read_text() == (example / "shown.yaml").read_text()
    for part in (
        "the first texts: reward 0.500",
        "candidate 1, made of 0: reward 1.000",
        "the search has ended: all",
    ):
        assert part in PAGE and part in outcome.out + outcome.err


@pytest.mark.whole
def test_the_python_example_does_the_same(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Any] = []
    monkeypatch.setattr(ajet, "run", lambda *args, **kwargs: trained.append(kwargs))
    (code,) = [code for code in blocks(PAGE, "python") if "tune_prompt" in code]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["found"].after.reward >= names["found"].before.reward
    assert trained == [{"backbone": "local", "set": {"prompts": names["found"].texts}}]


def test_every_key_is_in_the_table() -> None:
    table = PAGE[PAGE.index("| key of `backbone.prompts`") :]
    for name in PromptSearch.model_fields:
        assert f"`{name}`" in table, name
