"""A judge gives an episode its reward."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from ajet.base import Plugin
from ajet.types import EpisodeView, JudgeOutput, Task, WorkflowOutput


class Judge(Plugin):
    """Base of judges. One object serves all episodes of a job, many at once.

    LLM calls that a judge makes go to its own endpoint and are never recorded or trained.
    """

    @abstractmethod
    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """The verdict. An exception fails this episode only."""


class FunctionJudge(Judge):
    """A plain function as a judge: ``(task, output[, episode]) -> float | bool | JudgeOutput``."""

    name = "function"
    function: Callable[..., Any]

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        arguments = (task, output, episode)[: len(inspect.signature(self.function).parameters)]
        verdict = self.function(*arguments)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if isinstance(verdict, JudgeOutput):
            return verdict
        if isinstance(verdict, bool):
            return JudgeOutput(reward=float(verdict), is_success=verdict)
        if isinstance(verdict, (int, float)):
            return JudgeOutput(reward=float(verdict))
        raise TypeError(f"returned {type(verdict).__name__}; expected a number, a bool or a JudgeOutput")


class RewardFromWorkflow(Judge):
    """The judge of a job that names none: takes the reward that the workflow itself returned."""

    name = "workflow"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        if output.reward is None:
            raise ValueError(
                "the workflow returned no reward and the job names no judge; set `judge` or return WorkflowOutput(reward=…)"
            )
        return JudgeOutput(output.reward, output.is_success, output.metrics, output.rewards)
