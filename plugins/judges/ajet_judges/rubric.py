"""The `rubric` judge: which criteria of a rubric a response meets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, PrivateAttr, create_model

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges.asking import GradingJudge
from ajet_judges.questions import Question, Verdict
from ajet_judges.reference import response_text
from ajet_judges.rubric_file import Rubric, read_rubric

INSTRUCTIONS = """You check which criteria a response to a task meets.{about}

Criteria, by name:
{criteria}

Answer true for a criterion that RESPONSE meets, else false. Judge each by itself."""


class RubricJudge(GradingJudge):
    """The weighted share of a rubric's criteria that a model finds met. An empty response gets 0 without a request."""

    name = "rubric"

    path: Path = Field(description="YAML file of the rubric; `ajet judge learn` writes one.")
    success: float = Field(0.5, ge=0, le=1, description="Minimum reward of a successful episode.")
    _rubric: Rubric = PrivateAttr()

    def model_post_init(self, context: Any) -> None:
        """Read the rubric now, so that a broken one does not fail in the middle of a run."""
        super().model_post_init(context)
        self._rubric = read_rubric(self.path)

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        response = response_text(output)
        if not response.strip():
            return JudgeOutput(0.0, False)
        verdict, usage = await self.ask(rubric_question(self._rubric, self.about(task), response))
        met = {c.name: getattr(verdict, c.name) for c in self._rubric.criteria}
        reward = self._rubric.reward(met)
        metrics = usage.metrics() | {f"met/{name}": float(value) for name, value in met.items()}
        return JudgeOutput(reward, reward >= self.success, metrics)


def rubric_question(rubric: Rubric, about: dict[str, str], response: str) -> Question[Verdict]:
    """The question whose verdict has a boolean for each criterion."""
    criteria = "\n".join(f"- {c.name}: {c.text}" for c in rubric.criteria)
    about_text = f" The tasks: {rubric.about}" if rubric.about else ""
    fields: dict[str, Any] = {c.name: (bool, ...) for c in rubric.criteria}
    form = create_model("Checked", __base__=Verdict, **fields)
    instructions = INSTRUCTIONS.format(about=about_text, criteria=criteria)
    return Question(instructions, {**about, "RESPONSE": response}, form)
