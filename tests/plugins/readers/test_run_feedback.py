"""Feedback on a run's episodes becomes data that `ajet judge learn` and `ajet sft` read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ajet.learning.sft import read_transcripts
from ajet.reports.folder import find_run
from ajet.types import ConfigError
from ajet_readers.run_feedback import FEEDBACK, read_feedback
from tests.program import Program

AGENT = """
import httpx2

TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

async def run(task):
    body = {"model": "m", "messages": [{"role": "user", "content": task.query}], "tools": [TOOL]}
    async with httpx2.AsyncClient() as client:
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"].split()[-1]
"""


@pytest.fixture
def run_dir(tmp_path: Path, ajet: Program, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of four episodes, two on each task."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "feedback_agent.py").write_text(AGENT)
    (tmp_path / "script.yaml").write_text("- {when: 2+2, say: it is 4}\n- {say: it is 7}\n")
    tasks = [{"id": "a", "query": "2+2?", "answer": "4"}, {"id": "b", "query": "3+3?", "answer": "6"}]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    answers = json.dumps({"type": "script", "path": "script.yaml"})
    done = ajet(
        *("run", "--workflow", "feedback_agent.py:run", "--judge", "exact", "--tasks", "tasks.jsonl"),
        *("--backbone", "debug", "--set", f"backbone.debug.answers={answers}", "--set", "run.seed=0"),
    )
    assert done.code == 0, done.err
    sys.modules.pop("feedback_agent", None)
    return find_run(tmp_path / "runs")


def rate(run_dir: Path, *lines: dict[str, Any]) -> None:
    """Append lines of feedback; ``id`` is the end of an episode's id."""
    ids = [json.loads(line)["id"] for line in (run_dir / "episodes.jsonl").read_text().splitlines()]
    with (run_dir / FEEDBACK).open("a", encoding="utf-8") as file:
        for line in lines:
            (whole,) = [name for name in ids if name.endswith(line["id"])]
            file.write(json.dumps({**line, "id": whole, "time": "2026-01-31T12:00:00Z"}) + "\n")


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rated_episodes_are_labelled_responses_and_corrections_have_the_best_label(
    run_dir: Path, ajet: Program
) -> None:
    rate(run_dir, {"id": "a/0", "rating": -1}, {"id": "a/0", "rating": 1}, {"id": "a/0", "comment": "ok"})
    rate(
        run_dir,
        {"id": "b/0", "rating": -1, "correction": "it is 6", "comment": "wrong"},
        {"id": "b/1", "comment": "?"},
    )
    done = ajet("data", "from-feedback", "runs", "--examples", "labelled.jsonl")
    assert done.code == 0 and done.out == "3 labelled responses in labelled.jsonl\n", done.err
    found = sorted(records(Path("labelled.jsonl")), key=lambda record: str(record["response"]))
    assert found == [
        {"query": "2+2?", "answer": "4", "response": "4", "label": 1.0},
        {"query": "3+3?", "answer": "6", "response": "7", "label": -1.0},
        {"query": "3+3?", "answer": "6", "response": "it is 6", "label": 1.0},
    ]
    learn = pytest.importorskip("ajet_judges.learn")
    assert sorted(example.label for example in learn.read_examples(Path("labelled.jsonl"))) == [-1, 1, 1]


def test_corrected_and_good_chats_are_transcripts_with_their_tools(run_dir: Path, ajet: Program) -> None:
    rate(
        run_dir,
        {"id": "a/0", "rating": 5},
        {"id": "a/1", "rating": 4},
        {"id": "b/0", "correction": "it is 6"},
    )
    done = ajet("data", "from-feedback", str(run_dir), "--transcripts", "sft.jsonl")
    assert done.code == 0 and done.out == "2 transcripts in sft.jsonl\n", done.err
    found = {t.messages[0]["content"]: t for t in read_transcripts(Path("sft.jsonl"))}
    assert [m["content"] for m in found["2+2?"].messages] == ["2+2?", "it is 4"]
    assert [m["content"] for m in found["3+3?"].messages] == ["3+3?", "it is 6"]
    assert found["2+2?"].tools[0]["function"]["name"] == "add"
    done = ajet("data", "from-feedback", str(run_dir), "--transcripts", "sft.jsonl", "--at-least", "4")
    assert done.out == "3 transcripts in sft.jsonl\n"


def test_ratings_may_be_words_and_a_line_that_is_being_written_is_skipped(run_dir: Path) -> None:
    rate(run_dir, {"id": "a/0", "rating": "good"}, {"id": "a/1", "rating": False})
    with (run_dir / FEEDBACK).open("a") as file:
        file.write('{"id": "b/0", "rat')
    assert sorted(said.rating or 0 for said in read_feedback(run_dir).values()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "feedback.jsonl:1: not JSON"),
        ("[1]", "feedback.jsonl:1: needs `id`"),
        ('{"id": "x", "rating": "great"}', "`rating` is 'great'; write a number"),
        ('{"id": "x", "rating": NaN}', "`rating` is nan"),
        ('{"id": "x", "rating": 1' + "0" * 400 + "}", "`rating` is 1000"),
        ('{"id": "x", "correction": 3}', "`correction` is not a text"),
    ],
)
def test_a_line_that_is_not_feedback_is_an_error_with_its_number(
    run_dir: Path, line: str, fault: str
) -> None:
    (run_dir / FEEDBACK).write_text(line + "\n")
    with pytest.raises(ConfigError) as error:
        read_feedback(run_dir)
    assert fault in str(error.value)


@pytest.mark.whole
def test_without_feedback_or_files_the_command_says_what_is_missing(run_dir: Path, ajet: Program) -> None:
    assert "--examples FILE or --transcripts FILE is missing" in ajet("data", "from-feedback", "runs").err
    assert "no such file. Rate some episodes" in ajet("data", "from-feedback", "runs", "--examples", "x").err
    (run_dir / FEEDBACK).write_text('{"id": "elsewhere", "rating": 1}\n')
    done = ajet("data", "from-feedback", "runs", "--examples", "x")
    assert done.code == 2 and "nothing to write" in done.err
    assert "1 of 1 rated episodes are not in" in done.out and "such as elsewhere" in done.out
