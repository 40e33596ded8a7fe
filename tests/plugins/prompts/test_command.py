"""`ajet tune-prompt`: what its options do."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import ajet as api
from ajet.interfaces.prompts import read_prompts
from tests.e2e.conftest import tiny_model  # noqa: F401 - a fixture
from tests.program import Program

from . import hidden


@pytest.fixture
def arguments(folder: Path) -> list[str]:
    """The agent, its tasks and its judge."""
    file = Path(hidden.__file__)
    return ["--workflow", f"{file}:agent", "--judge", f"{file}:judge", "--tasks", "tasks.jsonl"]


@pytest.mark.whole
def test_flags_suffice(
    arguments: list[str],
    folder: Path,
    models: hidden.Models,
    ajet: Program,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", models.url)
    answers = f"backbone.prompts.answers={{type: openai, base_url: '{models.url}', model: agent}}"
    budget = ["--reflections", "5", "--reflection", "reflection", "--output", "out/best.yaml"]
    outcome = ajet("tune-prompt", *arguments, *budget, "--set", answers)
    assert outcome.code == 0, outcome.err
    (run_dir,) = (folder / "runs").iterdir()
    assert read_prompts(folder / "out" / "best.yaml") == read_prompts(run_dir / "prompts.yaml")
    assert models.count("reflection") == 5
    assert "before" in outcome.out and "written to out/best.yaml" in outcome.out


@pytest.mark.whole
def test_the_best_texts_are_trained_with(
    arguments: list[str],
    folder: Path,
    models: hidden.Models,
    tiny_model: Path,  # noqa: F811
    ajet: Program,
) -> None:
    job = {
        "model": str(tiny_model),
        "train": {"steps": 1, "batch_size": 1},
        "rollout": {"group_size": 2, "sampling": {"max_tokens": 4}},
        "backbone": {
            "name": "prompts",
            "prompts": {
                "reflection": models.chat_model("reflection"),
                "answers": models.chat_model("agent"),
                "reflections": 10,
            },
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    outcome = ajet("tune-prompt", "job.yaml", *arguments, "--then-train")
    assert outcome.code == 0, outcome.err
    searched, trained = sorted((folder / "runs").iterdir())
    best = read_prompts(searched / "prompts.yaml")
    assert best["rules"] != hidden.FIRST
    run = api.load_run(trained)
    assert run.checkpoint and run.job["prompts"] == best and run.job["backbone"]["name"] == "local"
    systems = {
        m["content"] for e in run.episodes() for chat in e.messages for m in chat if m["role"] == "system"
    }
    assert systems == {best["rules"]}


def test_mistakes_are_one_line(arguments: list[str], ajet: Program) -> None:
    for further, said in (
        (
            ["--reflection", "strong"],
            "--reflection: name the address of the model's API, too: --endpoint URL",
        ),
        ([], "backbone.prompts.reflection: is required"),
        (["--output", "."], "--output .: is a directory"),
        (["--resume", "nowhere"], "nowhere"),
    ):
        outcome = ajet("tune-prompt", *(arguments if further != ["--resume", "nowhere"] else []), *further)
        assert outcome.code == 1 or outcome.code == 2
        assert outcome.err.count("\n") == 1 and said in outcome.err
