"""A judge gives an episode its reward."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import ModelWrapValidatorHandler, model_validator

from ajet.interfaces.base import Plugin, Spec
from ajet.interfaces.workflow import WorkflowFailed
from ajet.types import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet.utils.signature import Binding, bind, takes
from ajet.utils.threads import called
from ajet.utils.user_code import written_at

JUDGED = ("task", "output", "episode")
"""The arguments of a judge."""


class Judge(Plugin):
    """Base of judges. One object serves all episodes of a job, many at once.

    LLM calls that a judge makes go to its own endpoint and are never recorded or trained.
    """

    kind = "judge"

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse methods that could not be called as judges are. Raises TypeError that names the signature."""
        super().__init_subclass__(**options)
        for method, values in (("judge", JUDGED), ("score_group", ("task", "episodes"))):
            function = inspect.getattr_static(cls, method, None)
            if inspect.isfunction(function) and not takes(function, ("self", *values)):
                raise TypeError(
                    f"{cls.__qualname__}.{method} must take (self, {', '.join(values)}), but takes "
                    f"{inspect.signature(function)}"
                )

    @model_validator(mode="wrap")
    @classmethod
    def _of_spec(cls, value: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        return check(value.build() if isinstance(value, Spec) else value)

    @abstractmethod
    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """Return the verdict. An exception fails this episode only. Code that blocks must not be ``async``: a plain method
        is called in a thread."""


class GroupJudge(Judge):
    """Base of judges that compare the members of a group: the episodes of one task."""

    @abstractmethod
    async def score_group(
        self, task: Task, episodes: Sequence[EpisodeView]
    ) -> Sequence[JudgeOutput | Exception | None]:
        """The verdicts on a complete group, one an episode, in their order.

        Called once, when every member has ended. ``episodes`` are all members, those that failed too: they
        have a ``failure`` and no output to judge, and what is returned for them (None will do) is not used.
        An exception in place of a verdict fails that member; one that is raised fails the whole group, and
        nothing but that group.
        """

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        """The verdict on a single episode, as in validation: a group of one."""
        alone = [replace(episode, output=output)]
        (verdict,) = await called(self.score_group, task, alone, name=f"the judge of {episode.id}")
        return given(verdict)


def given(verdict: JudgeOutput | Exception | None) -> JudgeOutput:
    """A member's verdict. Raises the exception that stands in its place, ValueError if there is none."""
    if isinstance(verdict, Exception):
        raise verdict
    if verdict is None:
        raise ValueError("gave no verdict on an episode that did not fail")
    return verdict


def rounded(reward: float) -> float:
    """A reward to 12 digits, as episodes keep it: sums that differ only by how floats were added (0.1 + 0.2, 0.3) are one reward."""
    return round(float(f"{reward:.12g}"), 12)


OF_TRAINER = {"self", "completion_ids", "trainer_state", "log_extra", "log_metric"}
"""What TRL's trainer gives a reward function that asks for it, besides prompts, completions and the columns of the data."""


class FunctionJudge(Judge):
    """A function as a judge: ``(task, output[, episode]) -> float | bool | (float, bool) | JudgeOutput``; the bool says whether the
    episode succeeded.

    Parameters with these names get these values in any order; others go by position. A function that is not async
    is called in threads, for several episodes at once.
    """

    name = "function"
    function: Callable[..., Any]

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        given = {"task": task, "output": output, "episode": episode}
        call = judge_binding(self.function).partial(self.function, given)
        verdict = await called(call, name=f"the judge of {episode.id}")
        if isinstance(verdict, JudgeOutput):
            return verdict
        if getattr(verdict, "ndim", None) == 0:  # a number or bool of numpy or torch
            verdict = verdict.item()
        if isinstance(verdict, bool):
            return JudgeOutput(reward=float(verdict), is_success=verdict)
        if isinstance(verdict, (int, float)):
            return JudgeOutput(reward=float(verdict))
        if isinstance(verdict, tuple) and len(verdict) == 2 and isinstance(verdict[0], int | float):
            reward, success = verdict
            if getattr(success, "ndim", None) == 0:
                success = success.item()
            if success in (True, False):  # also 1 and 0
                return JudgeOutput(reward=float(reward), is_success=bool(success))
        at = written_at(self.function)
        raise TypeError(
            f"returned {_what(verdict)}; expected a number, a bool, (reward, is_success) or a JudgeOutput"
            f"{f' ({at})' if at else ''}"
        )


def _what(verdict: Any) -> str:
    if isinstance(verdict, tuple):
        return f"({', '.join(type(part).__name__ for part in verdict)})"
    if not inspect.iscoroutine(verdict):
        return type(verdict).__name__
    verdict.close()
    return "a coroutine, which must be awaited"


def judge_binding(function: Callable[..., Any]) -> Binding:
    """Which of task, output and episode a judge function takes. Raises TypeError for another signature, with what replaces
    that of a reward function of TRL or verl."""
    code = getattr(function, "__code__", None)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if code else ()
    if {"completions", "completion_ids"} & {*names}:
        of_trl = {"prompts": "[task.query]", "completions": "[output.response]"}
        given = [
            f"{name}={of_trl.get(name, f'[task.metadata[{name!r}]]')}"
            for name in names
            if name not in OF_TRAINER
        ]
        raise TypeError(
            "is a reward function over batches, as TRL has them. A judge gets one episode: def judge(task, output): "
            f"return reward({', '.join(given)})[0]. If it reads messages, they are "
            "completions=[[{'role': 'assistant', 'content': output.response}]]"
        )
    if {"solution_str", "ground_truth"} & {*names}:
        of_verl = {"solution_str": "output.response", "ground_truth": "task.metadata['answer']"}
        passed = [f"{name}={of_verl[name]}" for name in names if name in of_verl]
        source = ["data_source=''"] if "data_source" in names else []
        raise TypeError(
            "is a reward function of verl. A judge gets task and output: def judge(task, output): "
            f"return score({', '.join([*source, *passed])})"
        )
    return bind(function, JUDGED, 2)


class RewardFromWorkflow(Judge):
    """The judge of a job that names none: uses the reward that the workflow returned."""

    name = "workflow"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        if output.reward is None:
            given = "text" if isinstance(output.response, str) else f"a {type(output.response).__name__}"
            what = "None" if output.response is None else f"{given}, no reward"
            raise WorkflowFailed(
                "no_reward",
                f"the workflow returned {what}, and the job names no judge; set `judge` or return WorkflowOutput(reward=…)",
            )
        return JudgeOutput(
            output.reward,
            output.is_success,
            output.metrics,
            output.rewards,
            call_rewards=output.call_rewards,
        )
