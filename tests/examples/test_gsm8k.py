"""examples/gsm8k: records in the form of GSM8K become tasks, replies are compared with what follows ####, and the agent runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.cli import run_program
from tests.examples.test_audit import audit, options
from tests.examples.test_math_code import with_walls
from tests.tiny import save_tiny_model

datasets = pytest.importorskip("datasets")
EXAMPLES = Path(__file__).parents[2] / "examples"
RECORDS = [
    {
        "question": "A baker fills 6 trays with 12 rolls each and sells 45 rolls. How many rolls are left?",
        "answer": "He bakes 6 * 12 = <<6*12=72>>72 rolls.\n72 - 45 = <<72-45=27>>27 are left.\n#### 27",
    },
    {
        "question": "A bike costs $1,500. Mia pays a third now. How many dollars does she still owe?",
        "answer": "She pays 1500 / 3 = <<1500/3=500>>500.\nShe owes 1500 - 500 = <<1500-500=1000>>1000.\n#### 1,000",
    },
    {
        "question": "Tom reads 15 pages a day. How many days does he need for a book of 180 pages?",
        "answer": "180 / 15 = <<180/15=12>>12 days.\n#### 12",
    },
]
ANSWERS = [
    {"turn": 0, "when": "baker", "call": {"name": "python", "arguments": {"code": "print(6 * 12 - 45)"}}},
    {"when": "baker", "say": "27"},
    {"when": "bike", "say": "She owes $1000."},
    {"when": "Tom", "say": "13"},
]
CARD = """---
configs:
- config_name: main
  data_files: [{split: train, path: main/train-*}, {split: test, path: main/test-*}]
- config_name: socratic
  data_files: [{split: train, path: socratic/train-*}]
---
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> Path:
    """A copy of the example, with a model whose tokenizer is here."""
    save_tiny_model(tmp_path / "model", tokenizer)
    for name in ("gsm8k", "math_code"):
        shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path / "gsm8k")
    Path("answers.yaml").write_text(yaml.safe_dump(ANSWERS))
    return tmp_path / "gsm8k"


def ajet(capsys: Any, *more: str) -> tuple[int, str]:
    """The exit code of `ajet check` with scripted answers, and what it prints."""
    code = run_program(
        ["check", "job.yaml", "--answers", "answers.yaml", "--group-size", "1", "--model", "../model", *more]
    )
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def assert_two_of_three_succeed(capsys: Any, *more: str) -> None:
    code, said = ajet(capsys, *more)
    assert code == 0 and "3 run" in said and "0 failed" in said and "2 of 3 succeeded" in said, said


@pytest.mark.whole
@with_walls
def test_a_copy_of_the_data_set_beside_the_job_is_read_in_place_of_the_hub(folder: Path, capsys: Any) -> None:
    data = folder / "openai" / "gsm8k"
    for subset, split in (("main", "train"), ("main", "test"), ("socratic", "train")):
        (data / subset).mkdir(parents=True, exist_ok=True)
        table = datasets.Dataset.from_list(
            RECORDS if subset == "main" else [{"question": "Why?", "answer": "#### 0"}]
        )
        table.to_parquet(data / subset / f"{split}-00000-of-00001.parquet")
    (data / "README.md").write_text(CARD)
    assert_two_of_three_succeed(capsys)


@pytest.mark.whole
@with_walls
def test_so_is_a_folder_of_json_lines_with_the_same_columns_and_what_is_trained_passes_the_audit(
    folder: Path, tokenizer: Any, capsys: Any
) -> None:
    (folder / "mine").mkdir()
    for split in ("train", "test"):
        (folder / "mine" / f"{split}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in RECORDS))
    mine = {"task.reader.path": "mine", "task.reader.subset": "null"}
    words = [word for key, value in mine.items() for word in ("--set", f"{key}={value}")]
    assert_two_of_three_succeed(capsys, *words)
    without = {"task.validation": "null"}
    assert run_program(["run", "job.yaml", *words, *options(folder, tokenizer, **without)]) == 0
    audit(folder / "runs", capsys)


def test_without_the_data_set_one_line_says_what_is_missing(folder: Path, capsys: Any) -> None:
    code, said = ajet(capsys)
    last = said.strip().splitlines()[-1]
    assert code == 2 and last.startswith("error: openai/gsm8k/main[train]: ConnectionError: "), said
    assert last.endswith(
        "put the data set's files into the folder openai/gsm8k beside the job, or set the reader's `path` to a folder."
    )
