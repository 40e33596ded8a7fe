"""Judges that compare text."""

from __future__ import annotations

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.reference import expected_text, response_text, verdict


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
        """The text in the form that is compared."""
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
