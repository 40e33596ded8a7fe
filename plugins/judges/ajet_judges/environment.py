"""The `environment` judge: the score from the workflow's environment."""

from __future__ import annotations

from pydantic import Field

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput


class Environment(Judge):
    """The environment's own score of the episode, which the workflow passes on in its output's metadata."""

    name = "environment"

    score: str = Field("score", description="Key of the output's metadata that contains the score.")
    success: float = Field(1.0, description="Minimum score of a successful episode.")

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        value = output.metadata.get(self.score)
        if not isinstance(value, int | float):
            kind = "no" if value is None else f"a {type(value).__name__} in"
            raise ValueError(
                f"the workflow's output has {kind} metadata[{self.score!r}]; "
                f"return WorkflowOutput(metadata={{{self.score!r}: …}}) with the environment's score"
            )
        return JudgeOutput(float(value), float(value) >= self.success)
