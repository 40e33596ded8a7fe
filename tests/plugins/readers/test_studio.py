"""The `traces` reader on databases of AgentScope Studio 1.0.9.

The databases in ``studio/`` were written by the real Studio, from what the real packages sent: agentscope 1.0.21
(messages and spans, and messages only), agentscope 2.0.10 (spans) and our logger `agentscope_studio`. Only the model
behind the agents was a script. ``studio/write_databases.py`` writes them again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import ConfigError, Task
from ajet.interfaces.reader import Reader, read_all
from ajet.job.config import Layers
from ajet.job.parts import build_plugin
from ajet_readers import Traces
from tests.pages import blocks, page

DUMPS = Path(__file__).parent / "studio"
FIRST, SECOND = "What grows in the woods?", "How old do they get?"


@pytest.fixture
def database(tmp_path: Path) -> Callable[..., Path]:
    """Restore a database, and change it by SQL."""

    def database(name: str, *changes: str) -> Path:
        path = tmp_path / "database.sqlite"
        with closing(sqlite3.connect(path)) as restored:
            restored.executescript((DUMPS / f"{name}.sql").read_text(encoding="utf-8"))
            for change in changes:
                restored.execute(change)
            restored.commit()
        return path

    return database


def read(path: Path, **fields: Any) -> list[Task]:
    return read_all(Traces(path=path, cache=path.parent / "cache", **fields), "task.reader")


def roles(task: Task) -> list[str]:
    return [message["role"] for message in task.messages]


def spans(task: Task) -> bool:
    return task.metadata["run"] == "with spans"


def test_questions_tools_replies_and_runs_of_agentscope_1(database: Callable[..., Path]) -> None:
    first, second = filter(spans, read(database("agentscope_1")))
    common = {"model": "m", "project": "forest", "run": "with spans"}
    assert (first.query, second.query) == (FIRST, SECOND)
    assert first.metadata == {
        **common,
        "trace": first.id.removeprefix("trace-"),
        "response": "Oaks grow there.",
        "tools": ["look"],
    }
    assert second.metadata == {
        **common,
        "trace": second.id.removeprefix("trace-"),
        "response": "Up to 1000 years.",
    }


def test_the_history_of_agentscope_1_is_a_chat_with_its_tool_calls(database: Callable[..., Path]) -> None:
    first, second = filter(spans, read(database("agentscope_1")))
    function = {"name": "look", "arguments": '{"place": "woods"}'}
    assert first.messages == ()
    assert list(second.messages) == [
        {"role": "user", "content": FIRST},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "oaks"},
        {"role": "assistant", "content": "Oaks grow there."},
        {"role": "user", "content": SECOND},
    ]


def test_a_run_whose_spans_went_elsewhere_is_read_from_its_messages(database: Callable[..., Path]) -> None:
    tasks = read(database("agentscope_1"))
    assert [t.metadata["run"] for t in tasks] == ["with spans"] * 2 + ["without spans"] * 2
    for told, traced in zip(tasks[2:], tasks[:2], strict=True):
        assert (told.query, told.messages) == (traced.query, traced.messages)
        for name in ("response", "project", "tools"):
            assert told.metadata.get(name) == traced.metadata.get(name)


def test_a_run_without_any_span_in_the_database_is_read_from_its_messages(
    database: Callable[..., Path],
) -> None:
    tasks = read(database("agentscope_1", "DELETE FROM span_table"))
    assert [t.query for t in tasks] == [FIRST, SECOND] * 2


def test_questions_tools_and_replies_of_agentscope_2(database: Callable[..., Path]) -> None:
    first, second = read(database("agentscope_2"))
    assert (first.query, first.messages, second.query) == (FIRST, (), SECOND)
    assert (first.metadata["response"], second.metadata["response"]) == (
        "Oaks grow there.",
        "Up to 1000 years.",
    )
    assert first.metadata["tools"] == ["look"] and "tools" not in second.metadata
    assert "run" not in first.metadata, "AgentScope 2 registers no run"
    assert roles(second) == ["user", "assistant", "tool", "assistant", "user"]
    assert second.messages[1]["tool_calls"][0]["function"]["name"] == "look"
    assert "oaks" in second.messages[2]["content"], "as AgentScope 2 writes it"


def test_what_our_logger_sends_comes_back_with_its_reward_as_feedback(database: Callable[..., Path]) -> None:
    tasks = read(database("ajet"))
    assert len(tasks) == 4 and len({t.query for t in tasks}) == 2
    for task in tasks:
        assert task.query.startswith("Which is larger, ")
        assert (task.metadata["project"], task.metadata["model"]) == ("sums", "starter")
        assert task.metadata["feedback"] == {"score": 0.25, "comments": []}
        assert task.metadata["response"] and "answer" not in task.metadata
    assert len({t.metadata["run"] for t in tasks}) == 1


def test_the_reader_of_the_page_reads_studios_own_file(
    database: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "AgentScope-Studio"
    kept.mkdir()
    database("agentscope_1").rename(kept / "database.sqlite")
    monkeypatch.setenv("HOME", str(tmp_path))
    layers = Layers()
    (shown,) = (block for block in blocks(page("docs/readers.md"), "yaml") if "database.sqlite" in block)
    job = yaml.safe_load(shown)
    layers.add(job, "job.yaml", tmp_path)
    reader = build_plugin(layers, Reader, layers.job().task.reader, "task.reader")
    assert isinstance(reader, Traces)
    assert len(read_all(reader.model_copy(update={"cache": tmp_path / "cache"}), "task.reader")) == 4


def test_feedback_may_name_a_trace_a_conversation_or_a_reply(
    database: Callable[..., Path], tmp_path: Path
) -> None:
    path = database("agentscope_1")
    with closing(sqlite3.connect(path)) as opened:
        runs = dict(opened.execute("SELECT name, id FROM run_table"))
        (reply,) = opened.execute(
            "SELECT replyId FROM message_table WHERE msg LIKE '%1000%' AND run_id = ?",
            (runs["without spans"],),
        ).fetchone()
    first = read(path)[0].metadata["trace"]
    given = [
        {"trace_id": first, "score": 1},
        {"conversation_id": runs["with spans"], "comment": "nice"},
        {"id": reply, "score": 0},
    ]
    (tmp_path / "feedback.jsonl").write_text("".join(json.dumps(line) + "\n" for line in given))
    found = [t.metadata.get("feedback") for t in read(path, feedback=tmp_path / "feedback.jsonl")]
    assert found == [
        {"score": 1.0, "comments": ["nice"]},
        {"score": None, "comments": ["nice"]},
        None,
        {"score": 0.0, "comments": []},
    ]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ("UPDATE span_table SET attributes = '{' WHERE name = 'chat m'", "span .*: cannot be read"),
        ("UPDATE message_table SET msg = '{}'", "message .*: cannot be read"),
        ("DROP TABLE span_table", "not a database of AgentScope Studio"),
    ],
)
def test_what_cannot_be_read_is_named(database: Callable[..., Path], change: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault) as raised:
        read(database("agentscope_1", change))
    assert "\n" not in str(raised.value) and "database.sqlite: " in str(raised.value)
