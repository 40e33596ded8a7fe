"""`ajet sft` and `ajet dpo`: what they refuse before anything is loaded."""

from __future__ import annotations

import pytest

from .conftest import Folder

FLAGS = ("--model", "m", "--transcripts", "chats.jsonl", "--output", "out")


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ([], "--transcripts chats.jsonl: no such file."),
        (["--transcripts", "tasks.jsonl", "--output", "."], "--output .: already exists"),
        (["--transcripts", "tasks.jsonl", "--set", "train.steps=3"], "accepts only keys of the backbone"),
        (["--transcripts", "tasks.jsonl", "--backbone", "lcal"], "did you mean 'local'"),
        (["--transcripts", "tasks.jsonl", "--set", "backbone.local.thread=1"], "did you mean 'threads'"),
    ],
)
def test_bad_input_is_refused(folder: Folder, further: list[str], said: str) -> None:
    outcome = folder.ajet("sft", *FLAGS, *further)
    assert outcome.code == 2, outcome.err
    assert said in outcome.err and outcome.err.count("\n") == 1
    assert not (folder.path / "out").exists()


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ([], "--pairs pairs.jsonl: no such file."),
        (["--pairs", "tasks.jsonl", "--output", "."], "--output .: already exists"),
        (
            ["--pairs", "tasks.jsonl", "--set", "train.steps=3"],
            "`ajet dpo` accepts only keys of the backbone",
        ),
        (["--pairs", "tasks.jsonl", "--beta", "0"], "dpo.beta: "),
        (
            ["--pairs", "tasks.jsonl", "--backbone", "verl"],
            "--backbone verl: 'dpo' needs both episodes of a pair",
        ),
    ],
)
def test_bad_input_of_pairs_is_refused(folder: Folder, further: list[str], said: str) -> None:
    flags = ("--model", "m", "--pairs", "pairs.jsonl", "--output", "out")
    outcome = folder.ajet("dpo", *flags, *further)
    assert outcome.code == 2, outcome.err
    assert said in outcome.err and outcome.err.count("\n") == 1
    assert not (folder.path / "out").exists()
