"""A search that is under way: GEPA in a thread of its own, episodes and models on their loops; and the file of texts that it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any, TypeVar

from ajet import ConfigError, Task
from ajet.interfaces.backbone import Metrics, RunResult
from ajet.interfaces.engine import Sampling
from ajet.interfaces.helpers import write_whole
from ajet.interfaces.prompts import as_yaml
from ajet.rollout.recorder import RunRecorder
from ajet.rollout.summary import totals
from ajet.runs.callbacks import Listeners
from ajet.runs.runtime import Runtime
from ajet_prompts.budget import Budget, SearchEnded
from ajet_prompts.candidates import Candidates, RanEpisode, Texts
from ajet_prompts.remembered import Remembered
from ajet_prompts.search import Candidate, Search

T = TypeVar("T")
_SAMPLING = Sampling()
"""With which the reflection model proposes."""


class Running:
    """Runs the search of a job; call `run` once."""

    def __init__(
        self,
        runtime: Runtime,
        recorder: RunRecorder,
        listeners: Listeners,
        proposer: Remembered,
        answers: Remembered | None,
        budget: Budget,
        *,
        repeats: int,
        examples: int,
        rewards: tuple[float, float],
    ) -> None:
        job = runtime.job
        self._job, self._portal, self._budget = job, runtime.portal, budget
        self._repeats, self._examples, self._rewards = repeats, examples, rewards
        self._recorder, self._listeners, self._proposer, self._answers = (
            recorder,
            listeners,
            proposer,
            answers,
        )
        self._validation = job.validation or job.tasks
        self._candidates = Candidates(
            runtime,
            recorder,
            self._budget,
            self._spent,
            repeats=repeats,
            resumed=job.resume is not None,
        )
        self._found: list[tuple[Candidate, Metrics]] = []
        self._loop = asyncio.get_running_loop()
        self._under_way: Future[Any] | None = None
        self._stopping = False
        self._error: BaseException | None = None

    async def run(self) -> RunResult:
        """Search until the budget is spent. Raises AjetError."""
        job, needed = self._job, len(self._validation) * self._repeats
        if self._budget.episodes is not None and self._budget.episodes < needed:
            raise ConfigError(
                "backbone.prompts.episodes",
                f"{self._budget.episodes} are too few to evaluate one candidate, which takes {needed}: "
                "raise it, or use fewer validation tasks.",
            )
        await self._candidates.run({}, self._validation)
        first = self._candidates.first
        if not first:
            raise ConfigError(
                f'workflow {job.workflow.spec}: asks for no text. Take the text to tune from ajet.prompt("NAME", default), or '
                "for a program that reads AJET_PROMPTS write its texts under `prompts` into the job."
            )
        search = Search(
            train=job.tasks,
            validation=self._validation,
            evaluate=self._evaluate,
            reflect=self._reflect,
            found=self._evaluated,
            examples=self._examples,
            rewards=self._rewards,
            seed=job.config.run.seed,
        )
        work = asyncio.ensure_future(asyncio.to_thread(search.run, first))
        try:
            why = await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stopping = True
            if self._under_way:
                self._under_way.cancel()
            await asyncio.wait([work])
            raise
        if self._error is not None:
            raise self._error
        return self._ended(why)

    # ---------------------------------------------------------------- in the thread of the search

    def _evaluate(self, texts: Texts, tasks: Sequence[Task]) -> list[list[RanEpisode]]:
        return self._call(self._candidates.run(texts, tasks))

    def _reflect(self, prompt: str) -> str:
        self._budget.reflect()
        messages = [{"role": "user", "content": prompt}]
        if not self._proposer.knows(messages, _SAMPLING):
            self._budget.pay(self._spent())
        reply = self._call(self._portal.run(self._proposer.complete(messages, (), _SAMPLING)))
        self._job.progress.stage(
            "tuning prompts",
            self._budget.reflected / self._budget.reflections,
            {"reward": self._best[0].reward},
        )
        return str(reply.get("content") or "")

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something that runs on the job's event loop."""
        if self._stopping:
            work.close()
            raise SearchEnded("interrupted")
        self._under_way = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            outcome: T = self._under_way.result()
        except SearchEnded:
            raise
        except CancelledError:
            raise SearchEnded("interrupted") from None
        except BaseException as error:
            self._error = error
            raise SearchEnded(str(error)) from error
        return outcome

    def _evaluated(self, candidate: Candidate) -> None:
        """A candidate has been evaluated on all validation tasks."""
        ended = self._candidates.ended(candidate.texts, self._validation)
        metrics = {
            **totals(ended, 0.0),
            "reward": candidate.reward,
            "reflections": self._budget.reflected,
            "episodes_run": self._budget.ran,
            "cost": self._spent(),
        }
        del metrics["tokens_per_second"]
        better = not self._found or candidate.reward > self._best[0].reward
        self._found.append((candidate, metrics))
        self._recorder.metrics("candidate", candidate.number, metrics)
        self._listeners.log(candidate.number, metrics)
        if candidate.number == 0:
            self._recorder.metrics("validation", 0, metrics)
        if better:
            self._write()
        self._job.progress.say(self._describe(candidate))

    # ---------------------------------------------------------------- results

    @property
    def _best(self) -> tuple[Candidate, Metrics]:
        """The candidate with the highest reward, the earliest of several."""
        return max(self._found, key=lambda pair: (pair[0].reward, -pair[0].number))

    def _write(self) -> None:
        write_prompts(self._recorder.dir / FILE, self._best[0], self._found[0][0], len(self._validation))

    def _describe(self, candidate: Candidate) -> str:
        """``candidate 3, of 1: reward 0.720 (first 0.400, best 0.720); 12 of 60 reflections, 340 episodes, cost 0.12``"""
        made_of = "the first texts" if candidate.parent is None else f"candidate {candidate.number}"
        origin = "" if candidate.parent is None else f", made of {candidate.parent}"
        spent = f", cost {self._spent():.4g}" if self._spent() else ""
        return (
            f"{made_of}{origin}: reward {candidate.reward:.3f} (first {self._found[0][0].reward:.3f}, best "
            f"{self._best[0].reward:.3f}); {self._budget.reflected} of {self._budget.reflections} reflections, "
            f"{self._budget.ran} episodes{spent}"
        )

    def _ended(self, why: str) -> RunResult:
        (best, after), (first, before) = self._best, self._found[0]
        self._recorder.metrics("validation", best.number, after)
        file = self._recorder.dir / FILE
        say = self._job.progress.say
        say(f"the search has ended: {why}")
        if best.number == 0:
            say(f"no better texts were found; {file} contains the first ones")
        else:
            say(
                f"reward {first.reward:.3f} -> {best.reward:.3f}; the texts are in {file}: `--set prompts={file}`"
            )
        if not self._job.validation:
            say(
                "the job has no validation tasks, so the rewards are of the tasks that the texts were tuned on"
            )
        return RunResult(run_dir=self._recorder.dir, steps=0, before=before, after=after)

    def _spent(self) -> float:
        return self._proposer.spent.cost + (self._answers.spent.cost if self._answers else 0.0)


FILE = "prompts.yaml"


def write_prompts(file: Path, best: Candidate, first: Candidate, tasks: int) -> None:
    """Write the best texts, with what is known of them as comments. Raises AjetError."""
    how = f"Mean reward on {tasks} validation tasks: {best.reward:.4g}, before {first.reward:.4g}."
    same = "# No better texts were found: these are the first ones.\n" if best.number == first.number else ""
    write_whole(
        file,
        f"# Texts for ajet.prompt, found by `ajet tune-prompt`. {how}\n{same}"
        "# In a job: `prompts: FILE`. For the agent alone: AJET_PROMPTS=FILE. The texts may be edited.\n"
        f"{as_yaml(best.texts)}",
    )
