"""Tasks whose episodes took place before: the backbones learn from them like from those that they run."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from ajet.tracker.record import EpisodeRecord
from ajet.types import Task, WorkflowOutput


@dataclass(frozen=True, slots=True)
class RecordedTask(Task):
    """A task of which no workflow runs and no judge is asked: `replay` says what happened."""

    @abstractmethod
    def replay(self, record: EpisodeRecord, member: int) -> WorkflowOutput | None:
        """Add the calls of a member's episode to its record, with the logprobs and weight versions with which they were
        sampled. Returns its output, whose reward counts; None if there is no such member."""
        raise NotImplementedError
