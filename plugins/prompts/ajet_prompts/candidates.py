"""Runs the episodes of candidates, each once: what an earlier process ran is read from the run folder."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ajet import AjetError, ConfigError, Task
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.failures import FailureKind
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.rollout.summary import Ended, describe_failures
from ajet.runs.runtime import Runtime, evaluation_policy
from ajet_prompts.budget import Budget
from ajet_prompts.examples import example

PHASE = "prompts"
Texts = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RanEpisode:
    """What remains of an episode."""

    ended: Ended
    example: Mapping[str, str]

    def reward(self, within: tuple[float, float]) -> float:
        """That of its judge; the lowest there is if it failed. Raises AjetError for one that is not ``within`` the job's bounds."""
        low, high = within
        if self.ended.failure:
            return low
        if not low <= self.ended.reward <= high:
            raise AjetError(
                f"episode {self.ended.id}: its reward {self.ended.reward:g} is outside backbone.prompts.rewards, {low:g} to {high:g}. "
                "Set the lowest and the highest there are, such as backbone.prompts.rewards=[1,5], and resume the search."
            )
        return self.ended.reward


class Candidates:
    """Evaluates candidates: texts by name. ``spent`` returns the cost of all replies so far."""

    def __init__(
        self,
        runtime: Runtime,
        recorder: RunRecorder,
        budget: Budget,
        spent: Callable[[], float],
        *,
        repeats: int,
        resumed: bool,
    ) -> None:
        self._declared: dict[str, str] = {}
        self._runtime, self._recorder, self._repeats = runtime, recorder, repeats
        self._budget, self._spent = budget, spent
        self._ran: dict[str, RanEpisode] = {}
        self._numbers: dict[str, int] = {}
        lines = live_lines(recorder.dir / JOURNAL) if resumed else []
        self._earlier = {line["id"]: line for line in lines if line["phase"] == PHASE}

    @property
    def first(self) -> dict[str, str]:
        """The texts that the workflow has asked for, as the job or else the workflow itself gives them."""
        given = self._runtime.job.prompts
        return {name: given.get(name, text) for name, text in sorted(self._declared.items())}

    async def run(self, texts: Texts, tasks: Sequence[Task]) -> list[list[RanEpisode]]:
        """The episodes of a candidate, for each task. Raises SearchEnded if the budget does not suffice, AjetError if the
        model or the judge cannot be used, or if the workflow declares its texts differently from episode to episode."""
        plans = self._plans(texts, tasks)
        new = [plan for plan in {plan.id: plan for plan in plans}.values() if plan.id not in self._ran]
        self._budget.run(len(new))
        for plan in new:
            if plan.id in self._earlier:
                self._keep(episode_from_json(self._earlier.pop(plan.id), plan))
        missing = [plan for plan in new if plan.id not in self._ran]
        if missing:
            self._budget.pay(self._spent())
            await self._run(texts, missing)
        episodes = [self._ran[plan.id] for plan in plans]
        return [episodes[i : i + self._repeats] for i in range(0, len(episodes), self._repeats)]

    def ended(self, texts: Texts, tasks: Sequence[Task]) -> list[Ended]:
        """The numbers of episodes that have been run."""
        plans = self._plans(texts, tasks)
        return [self._ran[plan.id].ended for plan in plans]

    async def _run(self, texts: Texts, plans: Sequence[Plan]) -> None:
        job = replace(self._runtime.job, prompts={**self._runtime.job.prompts, **texts})
        rollout = replace(self._runtime, job=job).rollout(
            evaluation_policy(job, job.config.eval.sampling.temperature)
        )
        step = self._numbers.setdefault(_digest(self._changed(texts)), len(self._numbers))
        broken = list[Episode]()
        enough = asyncio.Event()

        def done(episode: Episode) -> None:
            # A failure that says nothing about the candidate.
            if episode.failed and episode.failed.kind is FailureKind.ENGINE:
                broken.append(episode)
                enough.set()
                return
            self._recorder.episode(episode, phase=PHASE, step=step)
            self._keep(episode)

        episodes = await rollout.run(plans, done, enough)
        if broken:
            raise AjetError(
                f"episode {broken[0].id}: {broken[0].failure}: {broken[0].error}. The search has stopped; resume it with "
                f"ajet run --resume {shlex.quote(str(self._recorder.dir))}"
            )
        if not texts and all(episode.failed for episode in episodes):
            raise AjetError(f"all {len(episodes)} episodes failed: {describe_failures(episodes)}")

    def _keep(self, episode: Episode) -> None:
        for name, text in episode.prompts.items():
            if self._declared.setdefault(name, text) != text:
                raise ConfigError(
                    f"prompt {name!r} has one default in episode {episode.id} and another one before. Pass what depends on the "
                    "task to the agent separately, so that ajet.prompt gets the same default in every episode."
                )
        self._ran[episode.plan.id] = RanEpisode(Ended.of(episode), example(episode))

    def _plans(self, texts: Texts, tasks: Sequence[Task]) -> list[Plan]:
        """Seeds do not depend on the candidate, so that candidates are compared under equal conditions."""
        digest, seed = _digest(self._changed(texts)), self._runtime.job.config.run.seed
        return [
            Plan(f"{digest}/{name}", f"{seed}/{PHASE}/{name}", task, member, 0)
            for task in tasks
            for member in range(self._repeats)
            for name in [f"{task.id}/{member}"]
        ]

    def _changed(self, texts: Texts) -> Texts:
        first = self.first
        return {name: text for name, text in texts.items() if first.get(name) != text}


def _digest(texts: Texts) -> str:
    """Names a candidate by the texts that it changes."""
    return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()[:12]
