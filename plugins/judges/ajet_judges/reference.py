"""The reference answer of a task and the text of a response, for every judge here."""

from __future__ import annotations

from ajet import JudgeOutput, Task, WorkflowOutput


def expected_text(task: Task, key: str) -> str:
    """The task's answer as text. Raises ValueError that names the task, because a missing answer is a fault in the data,
    not in the agent."""
    value = task.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        found = "no" if value is None else f"a {type(value).__name__} in"
        raise ValueError(f"task {task.id!r} has {found} metadata[{key!r}]; the judge needs text or a number")
    text = str(value)
    if not text.strip():
        raise ValueError(f"task {task.id!r} has an empty metadata[{key!r}]; the judge needs an answer there")
    return text


def response_text(output: WorkflowOutput) -> str:
    """The response as text; a missing one is the empty text, which no judge here accepts."""
    return "" if output.response is None else str(output.response)


def verdict(correct: bool) -> JudgeOutput:
    """Reward 1 if correct, else 0."""
    return JudgeOutput(reward=float(correct), is_success=correct)
