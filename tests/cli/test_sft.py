"""`ajet sft`: what it refuses before anything is loaded."""

from __future__ import annotations

import pytest

from .conftest import Folder

FLAGS = ("--model", "m", "--transcripts", "chats.jsonl", "--output", "out")


@pytest.mark.parametrize(
    ("further", "said"),
    [
        ([], "--transcripts chats.jsonl: no such file."),
        (["--transcripts", "tasks.jsonl", "--output", "."], "--output . already exists"),
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
