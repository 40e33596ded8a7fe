"""The `math` judge: the number that a response ends with, compared with the task's."""

from __future__ import annotations

from fractions import Fraction

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.numbers import final_number
from ajet_judges.reference import expected_text, response_text, verdict


class Math(Judge):
    r"""Reward 1 if the response's number equals the answer, else 0.

    The number is the content of the last ``\boxed{…}``, else the last number in the text. Values are
    compared exactly, as fractions: 42 = 42.0, 1,000 = 1000, 3/4 = 0.75. Where only one side has a
    percent sign, both of its readings count: 50% = 50 = 0.5.
    """

    name = "math"

    answer: str = Field(default="answer", description="Key of the task's metadata that holds the answer.")
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Largest accepted difference."
    )

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        text = expected_text(task, self.answer)
        expected = final_number(text)
        if expected is None:
            raise ValueError(
                f"task {task.id!r}: metadata[{self.answer!r}] is {text!r}, which holds no number"
            )
        found = final_number(response_text(output))
        # By its decimal notation: a tolerance of 0.1 is a tenth, not the double next to it.
        return verdict(found is not None and found.equals(expected, Fraction(str(self.tolerance))))
