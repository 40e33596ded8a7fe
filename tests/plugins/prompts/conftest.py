"""A working folder, the two models, and a job for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import hidden


@pytest.fixture
def models() -> Iterator[hidden.Models]:
    with hidden.serving() as found:
        yield found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file of tasks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AJET_PROMPTS", raising=False)
    lines = [json.dumps(record) for record in hidden.RECORDS]
    (tmp_path / "tasks.jsonl").write_text("\n".join(lines))
    return tmp_path


@pytest.fixture
def job(folder: Path, models: hidden.Models) -> dict[str, Any]:
    """Arguments of a search for the hidden instruction."""
    return {
        "workflow": hidden.agent,
        "judge": hidden.judge,
        "tasks": hidden.RECORDS[:4],
        "validation": hidden.RECORDS[4:],
        "reflection": models.chat_model("reflection"),
        "answers": models.chat_model("agent"),
        "progress": False,
    }
