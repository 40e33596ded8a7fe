"""Train a job on a Trainer, evaluate a job, fine-tune on transcripts: what backbones call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ajet.capture.sampling import SamplingPolicy
from ajet.chat.renderer import Chat
from ajet.interfaces.backbone import RunResult, Trainer
from ajet.interfaces.engine import ChatModelPlugin, Engine
from ajet.interfaces.progress import Progress
from ajet.job.job import Backbone, Job
from ajet.learning.algorithms import DPO
from ajet.learning.demonstrations import demonstrations_of
from ajet.learning.loop import BatchSource, Loop, Ruined, train
from ajet.learning.preferences import PreferenceSource, preference_samples, read_preferences
from ajet.learning.rollouts import (
    RolloutSource,
    most_groups,
    plan_groups,
    reusable,
    sampled_under,
    validate,
)
from ajet.learning.settings import TrainSettings
from ajet.learning.sft import TranscriptSource, read_transcripts, steps_for, transcript_samples
from ajet.learning.steering import Steering
from ajet.learning.task_selector import PassRate, TaskSelector, make_selector
from ajet.rollout.checkpoints import checkpoints, restore
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.image_folder import restore_images
from ajet.rollout.journal import episode_from_json
from ajet.rollout.recorder import JOURNAL, METRICS, PASS_RATES, RunRecorder, live, live_lines
from ajet.rollout.scheduler import Rollout
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.summary import Ended
from ajet.runs.alarms import alarms_of, said_of
from ajet.runs.callbacks import FirstFailures, Listeners
from ajet.runs.run_dir import checkpoint_step, held, keep_same_tasks, keep_tokenizer, new_run_dir
from ajet.runs.runtime import (
    answering_engine,
    evaluation_policy,
    make_chat,
    open_runtime,
    training_policy,
)
from ajet.types import Metrics
from ajet.utils.asyncrun import run


def train_job(job: Job, trainer: Trainer, run_dir: Path | None = None) -> RunResult:
    """Train a prepared job on a trainer with the core's loop. A backbone whose trainer needs the run folder makes that with
    `new_run_dir`, or takes ``job.resume``, and gives it in a `held` block; otherwise this function does."""
    return run(_train(job, trainer, run_dir or job.resume or new_run_dir(job)), job.progress.say)


async def _train(job: Job, trainer: Trainer, run_dir: Path) -> RunResult:
    config, progress = job.config, job.progress
    with held(run_dir, progress.say):
        keep_same_tasks(run_dir, job)
        keep_tokenizer(run_dir, trainer.engine.tokenizer, progress)
        listeners = Listeners(job, run_dir)
        recorder = RunRecorder(run_dir, listeners.episode_end, batches=config.run.record_batches)
        done = 0
        if job.resume:
            done = restore(run_dir, trainer.load, progress.say)
            progress.started(run_dir)
        with listeners.run(done if job.resume else None), closing(recorder):
            async with open_runtime(job, engine=trainer.engine) as runtime:
                rollout, selector = runtime.rollout(training_policy(job)), _selector(job)
                steering = _steering(job, recorder, done)
                source = RolloutSource(
                    rollout=rollout,
                    selector=selector,
                    algorithm=job.algorithm,
                    settings=config.train,
                    seed=config.run.seed,
                    recorder=recorder,
                    on_episode=progress.episodes,
                    filters=job.filters,
                    reusable=_taken_up(job, rollout, selector, steering, recorder, done, trainer.version),
                    adapters=job.adapters,
                    teacher=runtime.teacher(),
                    steering=steering,
                )

                async def check(step: int) -> Metrics:
                    episodes = validation_run(job, runtime.rollout, recorder, step)
                    metrics = await validation(job, episodes, recorder.metrics, step)
                    listeners.log(step, {f"validation/{k}": v for k, v in metrics.items()})
                    return metrics

                def on_step(step: int, metrics: Metrics) -> None:
                    progress.step(step, config.train.steps, metrics)
                    listeners.step_end(step, metrics)

                alarms = alarms_of(job, run_dir)
                loop = Loop(
                    trainer=trainer,
                    source=source,
                    recorder=recorder,
                    settings=config.train,
                    publish=lambda: runtime.portal.run(trainer.publish()),
                    validate=check if job.validation else None,
                    validate_every=config.eval.every,
                    on_step=on_step,
                    on_checkpoint=listeners.checkpoint_saved,
                    alarms=alarms,
                    say=progress.say,
                )
                ended = await train(loop, done + 1)
            refuse_ruined(job, ended.ruined)
            listeners.said = ended.collapsed or said_of(alarms.found.values())
            listeners.result = RunResult(
                run_dir=run_dir,
                steps=config.train.steps,
                checkpoint=next(reversed(checkpoints(run_dir)), None),
                before=ended.before or recorded_validation(run_dir, first=True),
                after=ended.after or recorded_validation(run_dir, first=False),
            )
            return listeners.result


def refuse_ruined(job: Job, ruined: str) -> None:
    """Raise Ruined if training has ruined the model; ``ruined`` is what `CollapseCheck.ruined` says."""
    # Any other order of the tasks may end in hard ones.
    if ruined and job.config.task and job.config.task.selector.type == "shuffle":
        raise Ruined(f"the run did not succeed: {ruined}")


ValidationRun = Callable[[SamplingPolicy, str, Sequence[Plan]], Awaitable[Sequence[Ended]]]
"""Runs, judges and journals a validation's episodes: (policy, phase, plans)."""


def validation_run(
    job: Job, rollout: Callable[[SamplingPolicy], Rollout], recorder: RunRecorder, step: int
) -> ValidationRun:
    """Episodes of a validation at a step, run in this process; ``rollout`` gives that under a policy."""

    async def run(policy: SamplingPolicy, phase: str, plans: Sequence[Plan]) -> list[Ended]:
        finished: list[str] = []

        def done(episode: Episode) -> None:
            finished.append(episode.id)
            recorder.episode(episode, phase=phase, step=step)
            job.progress.episodes(phase, len(finished), len(plans))

        return [Ended.of(episode) for episode in await rollout(policy).run(plans, done)]

    return run


async def validation(
    job: Job, run: ValidationRun, record: Callable[[str, int, Metrics], object], step: int, of: str = ""
) -> Metrics:
    """Validation at a step, and once more greedily where the job asks for it. ``record`` stores the metrics of each;
    ``of`` says what is validated, if not the step. Raises AjetError if all episodes of one failed."""
    settings = job.config.eval
    kinds = {"validation": settings.sampling.temperature}
    if settings.greedy:
        kinds["greedy"] = 0.0
    together: Metrics = {}
    for kind, temperature in kinds.items():
        metrics = await validate(
            partial(run, evaluation_policy(job, temperature), kind),
            job.validation,
            step,
            kind=kind,
            limit=settings.episodes,
            repeats=1 if kind == "greedy" else settings.repeats,
            seed=job.config.run.seed,
            record=record,
        )
        prefix = "" if kind == "validation" else f"{kind}_"
        together |= {f"{prefix}{name}": value for name, value in metrics.items()}
        job.progress.say(f"{kind} {of or f'after step {step}'}: {describe_metrics(metrics)}")
    return together


def evaluate(job: Job, *, answers: ChatModelPlugin | None = None) -> Metrics:
    """Score a job's workflow on its validation tasks (else its tasks), answered by ``answers`` or by the
    engine of ``eval.engine`` over the job's model; the figure of a training run's validation."""
    engine = None if answers else answering_engine(job)
    return run(_evaluate(job, engine, answers), job.progress.say)


async def _evaluate(job: Job, engine: Engine | None, answers: ChatModelPlugin | None) -> Metrics:
    job = replace(job, validation=job.validation or job.tasks)
    run_dir = new_run_dir(job, "eval")
    if engine:
        keep_tokenizer(run_dir, engine.tokenizer, job.progress)
    recorder = RunRecorder(run_dir, FirstFailures(job.progress.say))
    try:
        async with open_runtime(job, engine=engine, answers=answers) as runtime:
            step = None if answers else checkpoint_step(job.model)
            of = "" if step is not None else "of the endpoint's model" if answers else f"of {job.model}"
            run = validation_run(job, runtime.rollout, recorder, step or 0)
            return await validation(job, run, recorder.metrics, step or 0, of)
    finally:
        recorder.close()


def sft(
    *,
    backbone: Backbone,
    model: str,
    transcripts: Path,
    output: Path,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: Progress,
    rollout: RolloutSettings | None = None,
) -> Path:
    """Fine-tune a model on the assistant's tokens of transcripts, written as in episodes with the settings ``rollout``; returns the
    checkpoint in ``output``."""
    read = read_transcripts(transcripts)
    settings = _file_settings("sft", epochs, len(read), batch_size, learning_rate)
    trainer = backbone.trainer(model, settings, seed=seed, deterministic=False, progress=progress)
    chat, longest = _format(trainer, rollout)
    source = TranscriptSource(transcript_samples(chat, read, longest, progress.say), settings, seed, epochs)
    return _learn(trainer, source, settings, output, progress)


def dpo(
    *,
    backbone: Backbone,
    model: str,
    pairs: Path,
    output: Path,
    algorithm: DPO,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    progress: Progress,
    rollout: RolloutSettings | None = None,
) -> Path:
    """Optimize a model on pairs of chats, written as in episodes with the settings ``rollout``; returns the checkpoint in ``output``.
    The reference is the model itself, before."""
    read = read_preferences(pairs)
    settings = _file_settings("dpo", epochs, len(read), batch_size, learning_rate)
    trainer = backbone.trainer(
        model, settings, seed=seed, deterministic=False, progress=progress, needs=algorithm.needs
    )
    chat, longest = _format(trainer, rollout)
    source = PreferenceSource(
        preference_samples(chat, read, longest, progress.say), algorithm, settings, seed, epochs
    )
    return _learn(trainer, source, settings, output, progress)


def _file_settings(
    algorithm: str, epochs: int, count: int, batch_size: int, learning_rate: float
) -> TrainSettings:
    """The settings of training on a file of ``count`` examples."""
    steps = steps_for(epochs, count, batch_size)
    return TrainSettings(
        algorithm={"type": algorithm},
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        save_every=max(steps, 1),
    )


def _format(trainer: Trainer, rollout: RolloutSettings | None) -> tuple[Chat, int]:
    """The chat format of a trainer's model, and the length of its context."""
    engine = trainer.engine
    return make_chat(engine.tokenizer, engine.model_type, rollout), engine.context_length


def _learn(
    trainer: Trainer, source: BatchSource, settings: TrainSettings, output: Path, progress: Progress
) -> Path:
    """Train on a source without episodes, in the new folder ``output``; returns the checkpoint."""
    recorder = RunRecorder(output)
    keep_tokenizer(output, trainer.engine.tokenizer, progress)
    try:
        loop = Loop(
            trainer=trainer,
            source=source,
            recorder=recorder,
            settings=settings,
            publish=trainer.publish,
            validate=None,
            validate_every=0,
            on_step=lambda s, m: progress.step(s, settings.steps, m),
        )
        checkpoint = run(train(loop, 1), progress.say).checkpoint
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted; no model was written") from None
    finally:
        recorder.close()
    assert checkpoint
    return checkpoint


def describe_metrics(metrics: Metrics) -> str:
    """The figures that matter most, in one line."""
    parts = [f"{name} {metrics[name]:.3f}" for name in ("reward", "accuracy") if name in metrics]
    parts.append(f"{metrics['episodes']:.0f} episodes")
    parts += [f"{value:.0f} {name}" for name, value in metrics.items() if name.startswith("failed/")]
    return ", ".join(parts)


def _selector(job: Job) -> TaskSelector:
    config = job.config
    assert config.task is not None
    return make_selector(
        config.task.selector,
        job.tasks,
        batch_size=config.train.batch_size,
        group_size=config.rollout.roots,
        seed=config.run.seed,
    )


def _steering(job: Job, recorder: RunRecorder, done: int) -> Steering | None:
    """What plans the starts of groups, in the state that it had after step ``done``."""
    config = job.config
    settings = config.rollout.steer
    if settings is None:
        return None
    steering = Steering(
        settings,
        recorder,
        batch_size=config.train.batch_size,
        group_size=config.rollout.roots,
        seed=config.run.seed,
        demonstrations=demonstrations_of(job.tasks, settings.demonstrations),
    )
    steering.read(done)
    return steering


def _taken_up(
    job: Job,
    rollout: Rollout,
    selector: TaskSelector,
    steering: Steering | None,
    recorder: RunRecorder,
    done: int,
    version: int,
) -> Mapping[str, Episode]:
    """Let a resumed run go on after step ``done``: bring the selector into the state it had then, and mark what the journal has
    of later steps as superseded, except what `_finished` returns and need not run again."""
    if not job.resume:
        return {}
    _observe_again(selector, recorder.dir, done)
    reused = reusable(rollout, _finished(job, selector, steering, recorder.dir, done + 1, version))
    recorder.supersede(done + 1 if done else 0, reused)
    which = "step" if all(name.startswith(f"{done + 1}.") for name in reused) else "steps"
    job.progress.say(
        f"resuming {recorder.dir} after step {done}; {len(reused)} finished episodes of the next {which} can be reused"
    )
    return reused


def _observe_again(selector: TaskSelector, run_dir: Path, step: int) -> None:
    """Bring a selector into the state that it had after a step. It learned from the same numbers in the same order, so
    the state is the same bit for bit."""
    for line in live_lines(run_dir / PASS_RATES):
        if line["step"] <= step:
            selector.observe([PassRate(*group) for group in line["groups"]])


def _finished(
    job: Job, selector: TaskSelector, steering: Steering | None, run_dir: Path, step: int, version: int
) -> dict[str, Episode]:
    """Finished training episodes, by id, that can be learned from when a run goes on with a step, whose weights have this version:
    those of the step that these weights sampled, and those that the run took over from its parent (``parent``), also of later steps,
    if they are as old as the job allows. Without forks and steered ones: those that run again may begin elsewhere. None in a
    deterministic run, where batches must be the same again, nor any with truncated calls, whose kept tokens the journal lacks."""
    if job.config.run.deterministic:
        return {}
    config, finished = job.config, {}

    def may_count(line: Mapping[str, Any]) -> bool:
        # With steering, it is not yet known how later steps begin.
        here = line["step"] == step or ("parent" in line and line["step"] > step and not steering)
        here = here and line["phase"] == "train" and line["failure"] is None and "fork" not in line
        return here and not any("truncated" in call.get("tokens", ()) for call in line["calls"])

    lines = live(run_dir / JOURNAL, lambda place, line: line if may_count(line) else None)
    most = most_groups(config.train, config.rollout)
    plans: dict[str, Plan] = {}
    for number in {line["step"] for line in lines}:
        tasks = islice(selector.order(number), most)
        planned = plan_groups(tasks, number, config.rollout.roots, config.run.seed)
        if steering:
            planned = steering.steered(number, planned)
        plans |= {plan.id: plan for plan in planned if not plan.fork}
    for line in lines:
        if plan := plans.get(line["id"]):
            episode = episode_from_json(line, plan)
            staleness = config.train.most_stale if "parent" in line else 0
            if sampled_under(episode, version + line["step"] - step, staleness):
                finished[plan.id] = _with_images(episode, run_dir)
    return finished


def recorded_validation(run_dir: Path, *, first: bool) -> Metrics:
    """Validation metrics of the first or last recorded step."""
    lines = [line for line in live_lines(run_dir / METRICS) if line["type"] in ("validation", "greedy")]
    if not lines:
        return {}
    step = lines[0]["step"] if first else lines[-1]["step"]
    newest = {line["type"]: line for line in lines if line["step"] == step}
    together: Metrics = {}
    for line in newest.values():
        prefix = "" if line["type"] == "validation" else f"{line['type']}_"
        together |= {f"{prefix}{k}": v for k, v in line.items() if k not in ("type", "step")}
    return together


def _with_images(episode: Episode, run_dir: Path) -> Episode:
    restore_images(episode.record, run_dir)
    return episode
