"""The `debug` backbone: a few episodes in this process, no training, then what a batch would have been."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from ajet.interfaces.backbone import Capabilities, RunResult
from ajet.interfaces.base import ChatModelSpec
from ajet.interfaces.engine import ChatModelPlugin, Engine
from ajet.job.job import Backbone
from ajet.types import AjetError, Metrics
from ajet.utils.terminal import readable

if TYPE_CHECKING:  # at run time inside the functions: this module is loaded by every `ajet --help`
    from ajet.job.job import Job
    from ajet.rollout.episode import Episode


class Debug(Backbone):
    """No training: runs a few episodes in this process, one at a time, so that breakpoints work."""

    name = "debug"
    capabilities: ClassVar[Capabilities] = Capabilities(trains=False)
    answers: ChatModelSpec | None = Field(
        None,
        description="Chat model that answers ({type: openai, …} or {type: script, path: …}); default: eval.engine over `model`.",
    )
    tasks: int = Field(4, ge=1, description="Tasks to run.")
    group_size: int = Field(2, ge=1, description="Episodes of each task.")
    concurrency: int = Field(1, ge=1, description="Episodes at once.")

    def run(self, job: Job) -> RunResult:
        """Run the episodes and print each. Raises AjetError if all of them failed."""
        from ajet.runs.runtime import answering_engine
        from ajet.utils.asyncrun import run

        answers = self._answers(job)
        engine = None if answers else answering_engine(job)
        for line in skipped(job, answered=answers is not None):
            job.progress.say(line)
        return run(self._run(job, engine, answers), job.progress.say)

    def _answers(self, job: Job) -> ChatModelPlugin | None:
        if self.answers is None:
            return None
        from ajet.job.parts import build_plugin

        return build_plugin(job.layers, ChatModelPlugin, self.answers, "backbone.debug.answers")

    async def _run(self, job: Job, engine: Engine | None, answers: ChatModelPlugin | None) -> RunResult:
        from ajet.learning.rollouts import plan_step
        from ajet.rollout.recorder import RunRecorder
        from ajet.rollout.summary import describe_failures, summarize
        from ajet.runs.run_dir import keep_tokenizer, new_run_dir
        from ajet.runs.runtime import open_runtime, training_policy

        rollout = job.config.rollout.model_copy(update={"concurrency": self.concurrency})
        job = replace(job, config=job.config.model_copy(update={"rollout": rollout}))
        run_dir = new_run_dir(job, "debug")
        if engine:
            keep_tokenizer(run_dir, engine.tokenizer, job.progress)
        recorder = RunRecorder(run_dir)
        plans = plan_step(
            job.tasks,
            1,
            batch_size=min(self.tasks, len(job.tasks)),
            group_size=self.group_size,
            seed=job.config.run.seed,
        )
        started = time.monotonic()

        def done(episode: Episode) -> None:
            recorder.episode(episode, phase="debug", step=1)
            job.progress.say(describe(episode))

        try:
            async with open_runtime(job, engine=engine, answers=answers, shows_prints=True) as runtime:
                episodes = await runtime.rollout(training_policy(job)).run(plans, done)
            metrics = summarize(episodes, time.monotonic() - started)
            recorder.metrics("debug", 1, metrics)
        finally:
            recorder.close()
        if all(e.failure for e in episodes):
            raise AjetError(f"all {len(episodes)} episodes failed: {describe_failures(episodes)}")
        for line in describe_batch(job, episodes, metrics):
            job.progress.say(line)
        return RunResult(run_dir=run_dir, steps=0)


def skipped(job: Job, *, answered: bool) -> list[str]:
    """The keys that the user set and that mean nothing without training; ``answered``: nor without engine."""
    unused = (*_UNUSED, "model", "run.deterministic") if answered else _UNUSED
    keys = [key for key in job.layers.sources if _below(key, unused) and not _below(key, _USED)]
    return (
        [f"debug: nothing is trained, so these keys have no effect now: {', '.join(sorted(keys))}"]
        if keys
        else []
    )


_USED = (
    "train.algorithm",
    "train.credit",
    "train.call_discount",
    "train.targets",
    "train.filters",
    "train.max_timelines",
)
_UNUSED = (
    "train",
    "eval",
    "task.selector",
    "task.validation",
    "rollout.group_size",
    "rollout.concurrency",
    "rollout.fork",
    "rollout.steer",
    "run.loggers",
    "run.restarts",
)


def _below(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def describe(episode: Episode) -> str:
    """One line: how an episode ended."""
    name = readable(episode.plan.id)
    if episode.failure:
        return f"FAIL  {name}  {readable(f'{episode.failure}: {episode.error}')}"
    verdict = {True: "pass", False: "miss", None: "done"}[episode.is_success]
    tokens = sum(len(c.generation.token_ids) for c in episode.record.calls)
    response = readable(" ".join(str(episode.output.response).split())[:80])
    calls = episode.record.answered
    return f"{verdict}  {name}  reward {episode.reward:g}  {calls} calls  {tokens} tokens  {response}"


def describe_batch(job: Job, episodes: Sequence[Episode], metrics: Metrics) -> list[str]:
    """What these episodes would have been as a training batch."""
    from ajet.learning.batch import TokenSelection, build_batch
    from ajet.rollout.summary import describe_failures

    lines = [
        f"{len(episodes)} episodes, reward {metrics.get('reward', 0.0):.3f}, failures: {describe_failures(episodes)}"
    ]
    selection = TokenSelection(job.filters, job.config.train.max_timelines)
    batch = build_batch(
        episodes,
        job.learning,
        mini_batches=1,
        learning_rate=0.0,
        seed="",
        selection=selection,
    )
    if batch is None:
        return [*lines, "no batch: the answers came from a chat model, which gives no tokens to train on"]
    total = sum(len(s.token_ids) for s in batch.batch.samples)
    lines.append(
        f"batch: {len(batch.batch.samples)} samples, {total} tokens, {batch.sampled_tokens} of them trained"
    )
    share = batch.metrics.get("groups_zero_advantage")
    if share is None:
        return [
            *lines,
            "advantages are those of tokens: the critic, which this backbone does not have, estimates them",
        ]
    lines.append(f"groups with zero advantage (nothing to learn): {share:.0%}")
    if share == 1:
        lines.append(
            "every group's rewards are equal: use a larger group, harder or easier tasks, or a finer reward"
        )
    return lines
