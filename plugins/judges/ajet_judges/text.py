"""Judges that compare text."""

from __future__ import annotations

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.reference import expected_text, response_text, verdict


class TextJudge(Judge):
    """What `exact` and `contains` share: how two texts are made comparable."""

    answer: str = Field(default="answer", description="Key of the task's metadata that contains the answer.")
    ignore_case: bool = Field(
        default=False, description="Ignore the difference between upper and lower case."
    )
    ignore_whitespace: bool = Field(
        default=True, description="Ignore white space at both ends; any run of it inside counts as one space."
    )

    def normal(self, text: str) -> str:
        """The text in the form in which it is compared."""
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
    """Reward 1 if the answer stands somewhere in the response, else 0.

    Any place counts, so the answer 4 is found in "42": judge numbers with `math`.
    """

    name = "contains"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        expected = expected_text(task, self.answer)
        return verdict(self.normal(expected) in self.normal(response_text(output)))
