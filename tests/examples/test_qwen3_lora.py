"""examples/qwen3_lora: its job is checked without the Hub."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from tests.program import Program

EXAMPLES = Path(__file__).parents[2] / "examples"


def copied(target: Path, examples: Path = EXAMPLES) -> Path:
    """The folder of a copy of the example, without what running it there has left."""
    for name in ("math", "qwen3_lora"):
        shutil.copytree(examples / name, target / name, ignore=shutil.ignore_patterns("tasks", "runs"))
    return target / "qwen3_lora"


def test_tasks_and_runs_that_somebody_made_in_the_example_do_not_matter(tmp_path: Path) -> None:
    used = tmp_path / "used"
    shutil.copytree(EXAMPLES / "math", used / "math")
    shutil.copytree(EXAMPLES / "qwen3_lora", used / "qwen3_lora")
    for left in ("tasks", "runs"):
        (used / "qwen3_lora" / left).mkdir(exist_ok=True)
    folder = copied(tmp_path / "copy", used)
    (folder / "tasks").mkdir()
    assert not (folder / "runs").exists() and (folder / "job.yaml").is_file()


@pytest.mark.e2e
def test_the_job_is_checked_without_fetching_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ajet: Program
) -> None:
    folder = copied(tmp_path)
    (folder / "tasks").mkdir()
    for split in ("train", "validation"):
        (folder / "tasks" / f"{split}.jsonl").write_text('{"id": "1", "query": "1 + 1 =", "answer": "2"}\n')
    monkeypatch.chdir(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket, "getaddrinfo", None)  # it would be called for the Hub's address
    outcome = ajet("run", "job.yaml", "--dry-run", "--memory-limit", "6GiB")
    assert outcome.code == 0, outcome.err
    job = yaml.safe_load(outcome.out)
    assert job["model"] == "Qwen/Qwen3-0.6B"
    assert job["targets"]["policy"]["lora"]["rank"] == 16
    assert job["backbone"]["local"]["memory_limit"] == "6GiB"
    assert not (tmp_path / "hub").exists()
