"""A user's folder whose answers come from a script, and the program run in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program

AGENT = """
import httpx2

async def run(task):
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]

not_callable = 3
"""
JOB = """
task: {reader: tasks.jsonl}
workflow: agent.py:run
judge: {type: exact}
backbone:
  name: debug
  debug: {answers: {type: script, path: script.yaml}, group_size: 1}
train: {steps: 3}
"""
TASKS = '{"id": "a", "query": "2+2?", "answer": "4"}\n{"id": "b", "query": "3+3?", "answer": "6"}\n'


class Folder:
    """A working directory with a job in it."""

    def __init__(self, path: Path, ajet: Program) -> None:
        self.path = path
        self.ajet = ajet

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder."""
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        return file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ajet: Program) -> Iterator[Folder]:
    made = Folder(tmp_path, ajet)
    made.write("agent.py", AGENT)
    made.write("tasks.jsonl", TASKS)
    made.write("script.yaml", '- {say: "4"}\n')
    made.write("job.yaml", JOB)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield made
