"""The `llm` judge: a model grades the response."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, create_model

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges.endpoint import GradingJudge
from ajet_judges.questions import Question, Verdict
from ajet_judges.text import response_text

INSTRUCTIONS = """You grade a response to a task. A good response is one of which this holds:

{criteria}

Give a score from 0 (none of it holds) to {scale} (all of it holds).{reference}"""
REFERENCE = " REFERENCE is an answer that is known to be right."


class LLM(GradingJudge):
    """A model's score of the response, from 0 to 1. An empty response gets 0 without a request."""

    name = "llm"

    criteria: str = Field(
        "The response answers the task correctly and completely.",
        description="What makes a response good.",
        min_length=1,
    )
    scale: int = Field(10, ge=1, le=100, description="The best score; the model returns a whole number.")
    success: float = Field(0.5, ge=0, le=1, description="Minimum reward of a successful episode.")

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        response = response_text(output)
        if not response.strip():
            return JudgeOutput(0.0, False)
        about = self.about(task)
        instructions = INSTRUCTIONS.format(
            criteria=self.criteria,
            scale=self.scale,
            reference=REFERENCE if "REFERENCE" in about else "",
        )
        question = Question(instructions, {**about, "RESPONSE": response}, graded(self.scale, "score"))
        verdict, usage = await self.ask(question)
        reward = getattr(verdict, "score") / self.scale  # noqa: B009 - the field is created at run time
        return JudgeOutput(reward, reward >= self.success, usage.metrics())


def graded(scale: int, *names: str) -> type[Verdict]:
    """The type of a verdict with a whole number from 0 to ``scale`` for each name."""
    fields: dict[str, Any] = {name: (Annotated[int, Field(ge=0, le=scale)], ...) for name in names}
    return create_model("Graded", __base__=Verdict, **fields)
