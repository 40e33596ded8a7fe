"""What a judge gets of a recorded episode, and what of it the journal does not have."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ajet import WorkflowOutput
from ajet.capture.context import passing_through
from ajet.rollout.episode import Episode
from ajet.rollout.failures import FailureKind

_NOT_KEPT = ("reward", "is_success", "metadata", "rewards", "call_rewards", "files")
"""Fields of a workflow's output that the journal does not have."""
_FROM_WORKFLOW = ("reward", "is_success", "rewards")
"""Those that it has if the run's job names no judge: they are the verdict."""
_OF_THE_JUDGE = ("workflow:no_reward", "workflow:returned_none")
"""Causes by which an episode failed because its judge had nothing that it could judge."""


class RecordedOutput(WorkflowOutput):
    """A workflow's output as the journal has it. ``missed`` names what the judge has read that is not there.

    A field that the journal does not have is empty, and reading it is noted instead of refused: a judge may catch whatever is
    raised. Only the judge's reading counts, not that of the code that calls it.
    """

    missed: set[str]

    def __init__(self, episode: Episode, *, unjudged: bool) -> None:
        """``unjudged``: the run's job names no judge."""
        given: dict[str, Any] = {"response": episode.output.response, "metrics": episode.metrics}
        if unjudged and episode.failure is None:
            given |= {name: getattr(episode, name) for name in _FROM_WORKFLOW}
        super().__init__(**given)
        known = _FROM_WORKFLOW if unjudged else ()
        object.__setattr__(self, "missed", set())
        object.__setattr__(self, "_unknown", {name for name in _NOT_KEPT if name not in known})
        object.__setattr__(self, "_caller", threading.get_ident())

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__
        if name in _NOT_KEPT and name in own(self, "_unknown") and _in_a_judge(own(self, "_caller")):
            own(self, "missed").add(name)
        return own(self, name)


def _in_a_judge(caller: int) -> bool:
    """Whether a judge runs here: in its own context, or in a thread other than the caller's."""
    return passing_through.get() or threading.get_ident() != caller


@dataclass(frozen=True, slots=True)
class JudgeVerdict:
    """What a judge said of an episode."""

    reward: float
    rewards: Mapping[str, float]
    call_rewards: Mapping[int, float]
    is_success: bool | None

    @classmethod
    def of(cls, episode: Episode) -> JudgeVerdict | None:
        """That of an episode; None if it failed."""
        if episode.failure is not None:
            return None
        return cls(episode.reward, dict(episode.rewards), dict(episode.call_rewards), episode.is_success)

    @property
    def credit(self) -> tuple[object, ...]:
        """What training learns from."""
        return self.reward, self.rewards, self.call_rewards

    def as_dict(self) -> dict[str, Any]:
        """For JSON; names that have no reward of their own are left out."""
        more = {"rewards": self.rewards, "call_rewards": self.call_rewards, "is_success": self.is_success}
        return {
            "reward": self.reward,
            **{name: value for name, value in more.items() if value not in ({}, None)},
        }


def has_output(episode: Episode) -> bool:
    """Whether an episode came to its end, so that it can be judged; its judge may have failed."""
    failed = episode.failed
    return failed is None or failed.kind is FailureKind.JUDGE or failed.cause in _OF_THE_JUDGE
