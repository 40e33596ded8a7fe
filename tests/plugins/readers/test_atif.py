"""The `traces` reader on trajectories in ATIF, as its specification has them."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError, Task
from ajet.interfaces.reader import read_all
from ajet_readers import Traces
from ajet_readers.traces.sources import trajectory_calls

TRAJECTORY: dict[str, Any] = {
    "schema_version": "ATIF-v1.7",
    "session_id": "run-1",
    "trajectory_id": "t-1",
    "agent": {"name": "terminus", "version": "2", "model_name": "gpt-5-mini"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Use the tools."},
        {
            "step_id": 2,
            "source": "user",
            "message": [{"type": "text", "text": "How many files"}, {"type": "text", "text": "are there?"}],
        },
        {
            "step_id": 3,
            "timestamp": "2026-11-01T12:00:00Z",
            "source": "agent",
            "message": "I look.",
            "reasoning_content": "ls will say it",
            "tool_calls": [{"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls"}}],
            "observation": {"results": [{"source_call_id": "c1", "content": "a\nb"}]},
            "metrics": {"prompt_tokens": 12, "completion_tokens": 5, "completion_token_ids": [1, 2]},
        },
        {"step_id": 4, "source": "agent", "message": "Context is compacted.", "llm_call_count": 0},
        {"step_id": 5, "source": "agent", "message": "Two.", "model_name": "gpt-5"},
    ],
}


def read(path: Path, **fields: Any) -> list[Task]:
    return read_all(Traces(path=path, cache=path.parent / "cache", **fields), "task.reader")


def trajectory(**changes: Any) -> dict[str, Any]:
    return deepcopy(TRAJECTORY) | changes


def test_a_call_has_the_messages_of_the_steps_before_it() -> None:
    first, second = trajectory_calls(TRAJECTORY)
    assert [m["role"] for m in first.messages] == ["system", "user"]
    assert [m["role"] for m in second.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert second.messages[2:4] == (
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "ls will say it",
            "tool_calls": [
                {
                    "id": "c1",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
    )
    assert first.answer == second.messages[2] and second.answer == {"role": "assistant", "content": "Two."}
    assert (first.model, second.model) == ("gpt-5-mini", "gpt-5")


def test_a_trajectory_is_a_task(tmp_path: Path) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(TRAJECTORY, indent=1))
    (task,) = read(file, answers="all")
    assert task.query == "How many files\nare there?" and task.metadata["answer"] == "Two."
    assert task.metadata["tools"] == ["bash"] and task.metadata["trace"] == "t-1"
    assert task.metadata["project"] == "terminus" and task.metadata["run"] == "run-1"


def test_lines_of_trajectories_are_read_and_feedback_finds_them(tmp_path: Path) -> None:
    file, feedback = tmp_path / "runs.jsonl", tmp_path / "feedback.jsonl"
    file.write_text("".join(json.dumps(trajectory(trajectory_id=name)) + "\n" for name in ("t-1", "t-2")))
    feedback.write_text('{"trace_id": "t-2", "score": 1}\n')
    assert ["answer" in task.metadata for task in read(file, feedback=feedback)] == [False, True]


def test_what_was_copied_from_an_earlier_trajectory_is_context_only() -> None:
    steps = deepcopy(TRAJECTORY["steps"])
    steps[2]["is_copied_context"] = True
    (call,) = trajectory_calls(trajectory(steps=steps))
    assert call.answer == {"role": "assistant", "content": "Two."} and len(call.messages) == 5


def test_an_agent_without_tool_calls_is_told_what_came_of_its_step_by_the_user() -> None:
    steps = [
        {"step_id": 1, "source": "user", "message": "List."},
        {"step_id": 2, "source": "agent", "message": "ls", "observation": {"results": [{"content": "a"}]}},
        {"step_id": 3, "source": "agent", "message": "One file."},
    ]
    *_, last = trajectory_calls(trajectory(steps=steps))
    assert last.messages[-1] == {"role": "user", "content": "a"}


def test_calls_of_subagents_are_of_the_same_trace(tmp_path: Path) -> None:
    inner = trajectory(trajectory_id="inner", agent={"name": "searcher", "version": "1"})
    calls = list(trajectory_calls(trajectory(subagent_trajectories=[inner])))
    assert {call.trace for call in calls} == {"t-1"}
    assert [call.span for call in calls] == ["3", "5", "inner/3", "inner/5"]


def test_subagents_of_subagents_are_read_and_odd_times_do_no_harm() -> None:
    steps = [{"step_id": 1, "source": "agent", "message": "Done.", "timestamp": 10**400}]
    innermost = trajectory(trajectory_id="innermost", steps=steps)
    inner = trajectory(trajectory_id="inner", steps=steps, subagent_trajectories=[innermost])
    calls = trajectory_calls(trajectory(steps=steps, subagent_trajectories=[inner]))
    assert [call.span for call in calls] == ["1", "inner/1", "inner/innermost/1"]


def test_in_a_folder_of_harbor_only_trajectories_are_read(tmp_path: Path) -> None:
    for name, record in (
        ("trajectory.json", TRAJECTORY),
        ("result.json", {"reward": 1}),
        ("config.json", {}),
    ):
        (tmp_path / "trial" / "agent").mkdir(parents=True, exist_ok=True)
        (tmp_path / "trial" / "agent" / name).write_text(json.dumps(record))
    assert len(read(tmp_path / "trial", format="atif")) == 1


@pytest.mark.parametrize("lost", ["agent", "steps"])
def test_what_is_no_trajectory_is_an_error_that_names_the_file(tmp_path: Path, lost: str) -> None:
    record = trajectory()
    del record[lost]
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=rf"trajectory\.json:1: cannot be read as a trajectory.*{lost}"):
        read(file)
