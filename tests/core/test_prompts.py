"""`ajet.prompt`: which text a workflow gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet import ConfigError, Task
from ajet.interfaces.prompts import Prompts, as_yaml, current_prompts, read_prompts
from tests.api.asking import ask


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AJET_PROMPTS", raising=False)


def test_outside_of_a_job_it_is_the_default_or_that_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ajet.prompt("rules", "Be brief.") == "Be brief."
    file = tmp_path / "prompts.yaml"
    file.write_text("rules: Be kind.\n")
    monkeypatch.setenv("AJET_PROMPTS", str(file))
    assert ajet.prompt("rules", "Be brief.") == "Be kind."
    assert ajet.prompt("other", "Be brief.") == "Be brief."


@pytest.mark.parametrize("given", [{"rules": "Be kind."}, "prompts.yaml"])
def test_a_job_has_its_own_texts_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.yaml").write_text("rules: Be kind.\n")
    (tmp_path / "script.yaml").write_text("- {say: yes}\n")
    seen = []

    async def agent(task: Task) -> str:
        seen.append((ajet.prompt("rules", "Be brief."), ajet.prompt("other", "Be good.")))
        return await ask(task)

    run = ajet.run(
        workflow=agent,
        tasks=[{"query": "?"}],
        judge=lambda task, output: 1.0,
        backbone="debug",
        set={"prompts": given, "backbone.debug.answers": {"type": "script", "path": "script.yaml"}},
        progress=False,
    )
    assert set(seen) == {("Be kind.", "Be good.")}
    assert run.job["prompts"] == {"rules": "Be kind."}


def test_files_are_readable_and_lose_nothing(tmp_path: Path) -> None:
    texts = {
        "rules": "First line.\n\n  indented: ünïcode\nlast line\n",
        "one": "a 'quoted' word: and # no comment",
        "empty": "",
        "spaces": " \n trailing \n",
    }
    file = tmp_path / "prompts.yaml"
    file.write_text(as_yaml(texts), encoding="utf-8")
    assert read_prompts(file) == texts
    assert "rules: |\n  First line.\n" in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("- a\n", "a file of prompts is a mapping, name: text"),
        ("rules: 3\n", "rules: write name: text"),
        ("'a b': text\n", "a b: write name: text"),
        ("rules: 'unfinished\n", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "prompts.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as error:
        read_prompts(file)
    assert said in str(error.value) and str(file) in str(error.value) and "\n" not in str(error.value)


def test_a_name_must_be_one_that_a_file_can_hold() -> None:
    with pytest.raises(ValueError, match="use letters, digits"):
        ajet.prompt("two words", "text")


def test_what_was_asked_for_is_noted_with_its_default() -> None:
    prompts = Prompts({"rules": "Be kind."})
    token = current_prompts.set(prompts)
    try:
        assert ajet.prompt("rules", "Be brief.") == "Be kind."
    finally:
        current_prompts.reset(token)
    assert prompts.asked == {"rules": "Be brief."}
