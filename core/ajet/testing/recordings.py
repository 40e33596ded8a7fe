"""Recorded episodes as regression tests: the workflow and the judge run, and the recording answers their LLM calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.api.calling import anywhere
from ajet.api.jobs import AnyJudge, AnyPath, prepared
from ajet.rollout.recording import RecordedEpisode, Recording
from ajet.runs.replay import Replayed, replay, replay_layers


@dataclass(frozen=True, repr=False)
class ReplayedEpisode:
    """An episode that was run again."""

    recorded: RecordedEpisode
    """What was recorded: ``recorded.verdict.reward``, ``recorded.response``, ``recorded.calls`` and more."""
    reward: float
    """The judge's reward; 0 if the episode failed."""
    rewards: Mapping[str, float]
    """Rewards of single agents and targets, by name, if they differ from ``reward``."""
    is_success: bool | None
    metrics: Mapping[str, float]
    feedback: str
    """The judge's verdict in words."""
    response: Any
    """What the workflow returned."""
    failure: str | None
    """Why it failed, such as ``workflow:KeyError``; None if it was judged."""
    error: str
    """The failure in words."""
    messages: Sequence[Sequence[Mapping[str, Any]]]
    """The chat of each call, its answer last."""
    differences: Sequence[str]
    """What is not as recorded, a line each: requests, calls that were not made, failure, response, verdict."""

    @classmethod
    def of(cls, one: Replayed) -> ReplayedEpisode:
        """The outcome of a replay."""
        episode = one.episode
        return cls(
            recorded=one.recorded,
            reward=episode.reward,
            rewards=episode.rewards,
            is_success=episode.is_success,
            metrics=episode.metrics,
            feedback=episode.feedback,
            response=episode.output.response,
            failure=episode.failure,
            error=episode.error,
            messages=episode.view().messages,
            differences=one.differences,
        )

    def __repr__(self) -> str:
        outcome = f"{self.failure}: {self.error}" if self.failure else f"reward {self.reward:g}"
        return f"<replayed {self.recorded.id}: {'; '.join([outcome, *self.differences])}>"


@dataclass(frozen=True)
class RecordingFile:
    """A recording to replay. Raises ConfigError if the file is not one."""

    file: Path
    ignore: Sequence[str] = ()
    """Regular expressions of text that may differ in requests, such as dates."""

    @property
    def episodes(self) -> Sequence[RecordedEpisode]:
        """What was recorded."""
        return Recording.read(self.file).episodes

    def replay(
        self,
        workflow: object | None = None,
        *,
        judge: AnyJudge | None = None,
        job: AnyPath | None = None,
        episode: str = "",
        set: Mapping[str, Any] | None = None,
    ) -> ReplayedEpisode:
        """Run one recorded episode again: the one whose id contains ``episode``, which may be left out if there is only one.

        ``workflow``, ``judge`` and ``set`` are as in `ajet.run`, and lie over the job file ``job``. Without a judge the reward
        is the workflow's own. Requests that were not recorded fail as errors of the LLM API, and are in ``differences``.
        Raises AjetError if the episode or the job is wrong.
        """
        return self._replay([Recording.read(self.file).find(episode)], workflow, judge, job, set)[0]

    def replay_all(
        self,
        workflow: object | None = None,
        *,
        judge: AnyJudge | None = None,
        job: AnyPath | None = None,
        set: Mapping[str, Any] | None = None,
    ) -> list[ReplayedEpisode]:
        """Run every recorded episode again, as `replay` does. A judge of groups needs this."""
        return self._replay(self.episodes, workflow, judge, job, set)

    @anywhere
    def _replay(
        self,
        episodes: Sequence[RecordedEpisode],
        workflow: object | None,
        judge: AnyJudge | None,
        job: AnyPath | None,
        set: Mapping[str, Any] | None,
    ) -> list[ReplayedEpisode]:
        given = {"job": job, "workflow": workflow, "judge": judge, "set": set, "progress": False}
        with prepared(replay_layers(given, episodes), given) as (ready, _):
            return [ReplayedEpisode.of(one) for one in replay(ready, episodes, self.ignore)]
