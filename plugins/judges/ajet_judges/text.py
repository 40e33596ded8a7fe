"""Judges that compare text; the text of responses and of reference answers, for every judge here."""

from __future__ import annotations

import unicodedata

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.interfaces.helpers import nearest


def expected_text(task: Task, key: str) -> str:
    """The task's answer as text. Raises ValueError that names the task, because a missing answer is a fault in the data,
    not in the agent."""
    value = task.metadata.get(key)
    value = None if isinstance(value, float) and value != value else value  # NaN: pandas' missing value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = "no" if value is None else f"a {type(value).__name__} in"
        there = (
            f"{nearest(key, task.metadata)}. Its fields: {', '.join(task.metadata) or 'none'}"
            if value is None
            else ""
        )
        raise ValueError(
            f"task {task.id!r} has {kind} metadata[{key!r}]; the judge needs text or a number{there}"
        )
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


class TextJudge(Judge):
    """Base of `exact` and `contains`: it normalizes texts before they are compared."""

    answer: str = Field(default="answer", description="Key of the task's metadata that contains the answer.")
    ignore_case: bool = Field(
        default=False, description="Ignore the difference between upper and lower case."
    )
    ignore_whitespace: bool = Field(
        default=True,
        description="Ignore white space at both ends; any white space inside counts as one space.",
    )

    def normal(self, text: str) -> str:
        """The text in the form that is compared: also é as one character, or as e and its accent, is the same."""
        text = unicodedata.normalize("NFC", text)
        if self.ignore_whitespace:
            text = " ".join(text.split())
        return text.casefold() if self.ignore_case else text


class Exact(TextJudge):
    """Reward 1 if the response is the answer, else 0."""

    name = "exact"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        expected = expected_text(task, self.answer)
        return verdict(self.normal(response_text(output)) == self.normal(expected))


class Contains(TextJudge):
    """Reward 1 if the response contains the answer, else 0.

    The answer 4 is found in "42", so judge numbers with `math`.
    """

    name = "contains"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        expected = expected_text(task, self.answer)
        return verdict(self.normal(expected) in self.normal(response_text(output)))
