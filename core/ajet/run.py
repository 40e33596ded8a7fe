"""Running a job on a Trainer, evaluating one, fine-tuning on transcripts: what backbones call."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.backbone import Backbone, RunResult, Trainer
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Answerer
from ajet.capture.targets import Target
from ajet.chat import Chat
from ajet.engine import ChatModelPlugin, Engine, EnginePlugin
from ajet.job import Job, resolved_yaml
from ajet.judge import Judge
from ajet.learning.loop import Loop, train
from ajet.learning.rollouts import RolloutSource, plan_step, validate
from ajet.learning.settings import TrainSettings
from ajet.learning.sft import TranscriptSource, read_transcripts, steps_for, transcript_sample
from ajet.progress import Progress
from ajet.rollout.episode import Episode, EpisodeRunner
from ajet.rollout.journal import episode_from_json
from ajet.rollout.lockstep import Lockstep
from ajet.rollout.recorder import JOURNAL, METRICS, RunRecorder, checkpoints, live_lines
from ajet.rollout.scheduler import Rollout
from ajet.rollout.watchdog import Board
from ajet.types import ConfigError, Metrics


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that is open while episodes run."""

    job: Job
    portal: Portal
    capture: Capture
    engine: Engine | None
    lockstep: Lockstep | None
    chat: Chat | None
    targets: tuple[Target, ...]
    judge: Judge
    board: Board

    def rollout(self, policy: SamplingPolicy) -> Rollout:
        """Episodes under a sampling policy."""
        settings = self.job.config.rollout
        answerer = Answerer(self.lockstep or self.engine, self.chat, self.targets, policy)
        hook = self.job.plugins.manager.hook
        runner = EpisodeRunner(
            self.job.workflow,
            answerer,
            self.capture,
            self.job.plugins.handles,
            settings.timeout,
            self.board,
            hook,
        )
        if self.lockstep:
            runner = replace(runner, excused=self.lockstep.waited)
        return Rollout(
            runner, self.judge, settings, self.portal, self.lockstep, self.job.progress.say, self.board
        )


@asynccontextmanager
async def open_runtime(
    job: Job, *, engine: Engine | None, answers: ChatModelPlugin | None = None
) -> AsyncIterator[Runtime]:
    """Start engine, models, judge and capture; end them all. ``answers`` takes the place of the engine."""
    portal = Portal()
    models = AsyncExitStack()
    resolve = job.plugins.manager.hook.ajet_resolve_agent
    try:
        if engine:
            await portal.run(engine.start())
        targets = []
        for plan in job.targets:
            model = plan.model or answers
            live = await portal.run(models.enter_async_context(model.open())) if model else None
            targets.append(Target(plan.name, plan.agents, live, plan.trained))
        chat = Chat(engine.tokenizer, engine.model_type) if engine else None
        lockstep = Lockstep(engine) if engine and job.config.run.deterministic else None
        async with job.judge.open() as judge:
            with Capture(
                portal,
                strict=job.config.rollout.strict,
                resolve_agent=lambda episode, request: resolve(episode=episode, request=request),
            ) as capture:
                yield Runtime(job, portal, capture, engine, lockstep, chat, tuple(targets), judge, Board())
    finally:
        await portal.run(models.aclose())
        if engine:
            await portal.run(engine.close())
        portal.close()


def train_job(job: Job, trainer: Trainer) -> RunResult:
    """Train a prepared job on a trainer, in a new run folder or in the one to resume."""
    return asyncio.run(_train(job, trainer))


async def _train(job: Job, trainer: Trainer) -> RunResult:
    config, progress = job.config, job.progress
    run_dir = job.resume or new_run_dir(job)
    finished = checkpoints(run_dir)
    done = json.loads((finished[-1] / "ajet.json").read_text())["step"] if finished else 0
    recorder = RunRecorder(run_dir)
    hook = job.plugins.manager.hook
    reusable: dict[str, Episode] = {}
    if job.resume:
        reusable = _reusable(job, run_dir, done + 1)
        if finished:
            trainer.load(finished[-1])
        recorder.supersede(done + 1 if finished else 0, reusable)
        progress.started(run_dir)
        progress.say(
            f"resuming {run_dir} after step {done}; {len(reusable)} finished episodes of the next step can be reused"
        )

    def on_step(step: int, metrics: Metrics) -> None:
        progress.step(step, config.train.steps, metrics)
        for logger in job.loggers:
            logger.log(run_dir, step, metrics)
        hook.ajet_step_end(step=step, metrics=metrics)

    try:
        async with open_runtime(job, engine=trainer.engine) as runtime:
            source = RolloutSource(
                runtime.rollout(training_policy(job)),
                job.tasks,
                job.algorithm,
                config.train,
                config.rollout.group_size,
                config.run.seed,
                recorder,
                progress.episodes,
                reusable,
            )

            async def check(step: int) -> Metrics:
                metrics = await _validate(runtime, recorder, step)
                for logger in job.loggers:
                    logger.log(run_dir, step, {f"validation/{k}": v for k, v in metrics.items()})
                return metrics

            loop = Loop(
                trainer,
                source,
                recorder,
                config.train,
                lambda: runtime.portal.run(trainer.publish()),
                check if job.validation else None,
                config.eval.every,
                on_step,
            )
            result = await train(loop, done + 1)
    finally:
        recorder.close()
        for logger in job.loggers:
            logger.close()
    return RunResult(
        run_dir,
        config.train.steps,
        next(reversed(checkpoints(run_dir)), None),
        result.before or _recorded_validation(run_dir, first=True),
        result.after or _recorded_validation(run_dir, first=False),
        result.train_seconds,
    )


async def _validate(runtime: Runtime, recorder: RunRecorder, step: int) -> Metrics:
    """Validation at a step, and once more greedily where the job asks for it."""
    job = runtime.job
    settings = job.config.eval
    kinds = {"validation": settings.sampling.temperature}
    if settings.greedy:
        kinds["greedy"] = 0.0
    together: Metrics = {}
    for kind, temperature in kinds.items():
        metrics = await validate(
            runtime.rollout(evaluation_policy(job, temperature)),
            job.validation,
            step,
            kind=kind,
            limit=settings.episodes,
            seed=job.config.run.seed,
            recorder=recorder,
            on_episode=job.progress.episodes,
        )
        prefix = "" if kind == "validation" else f"{kind}_"
        together |= {f"{prefix}{name}": value for name, value in metrics.items()}
        job.progress.say(f"{kind} after step {step}: {describe_metrics(metrics)}")
    return together


def evaluate(job: Job, *, answers: ChatModelPlugin | None = None) -> Metrics:
    """Score a job's workflow on its validation tasks (else its tasks), answered by ``answers`` or by the
    engine plugin ``local`` over the job's model; the figure of a training run's validation."""
    engine = None if answers else local_engine(job)
    return asyncio.run(_evaluate(job, engine, answers))


async def _evaluate(job: Job, engine: Engine | None, answers: ChatModelPlugin | None) -> Metrics:
    job = replace(job, validation=job.validation or job.tasks)
    run_dir = new_run_dir(job)
    recorder = RunRecorder(run_dir)
    try:
        async with open_runtime(job, engine=engine, answers=answers) as runtime:
            return await _validate(runtime, recorder, 0)
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
) -> Path:
    """Fine-tune a model on the assistant's tokens of transcripts; returns the checkpoint in ``output``."""
    read = read_transcripts(transcripts)
    steps = steps_for(epochs, len(read), batch_size)
    settings = TrainSettings(
        algorithm={"type": "sft"},
        steps=steps,
        batch_size=batch_size,
        learning_rate=learning_rate,
        save_every=max(steps, 1),
    )
    trainer = backbone.trainer(model, settings, seed=seed, deterministic=False, progress=progress)
    chat = Chat(trainer.engine.tokenizer, trainer.engine.model_type)
    source = TranscriptSource([transcript_sample(chat, t) for t in read], settings, seed)
    recorder = RunRecorder(output)
    try:
        loop = Loop(
            trainer,
            source,
            recorder,
            settings,
            trainer.publish,
            None,
            0,
            lambda s, m: progress.step(s, steps, m),
        )
        checkpoint = asyncio.run(train(loop, 1)).checkpoint
    finally:
        recorder.close()
    assert checkpoint
    return checkpoint


def local_engine(job: Job) -> Engine:
    """The engine plugin ``local`` over the job's model, for answering without training."""
    cls = job.plugins.get("engine", "local", "the local engine (pip install ajet-plugin-local)")
    plugin = cls()
    assert isinstance(plugin, EnginePlugin)
    return plugin.build(job.model, job.config.run.seed, job.progress)


def training_policy(job: Job) -> SamplingPolicy:
    """`rollout.sampling`, over the agent's own."""
    s = job.config.rollout.sampling
    return SamplingPolicy(True, s.temperature, s.top_p, s.top_k, s.max_tokens)


def evaluation_policy(job: Job, temperature: float) -> SamplingPolicy:
    """`eval.sampling`, where the agent says nothing itself."""
    s = job.config.eval.sampling
    return SamplingPolicy(False, temperature, s.top_p, s.top_k, s.max_tokens)


def new_run_dir(job: Job) -> Path:
    """A new run folder with the resolved job and the versions in it; says where it is."""
    stem = time.strftime("%Y%m%d-%H%M%S")
    root = Path(job.config.run.dir).expanduser().resolve()
    root.mkdir(parents=True, exist_ok=True)
    for n in range(1000):
        run_dir = root / (f"{stem}-{n}" if n else stem)
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        (run_dir / "job.yaml").write_text(resolved_yaml(job), encoding="utf-8")
        (run_dir / "versions.json").write_text(json.dumps(versions(job), indent=2))
        job.progress.started(run_dir)
        return run_dir
    raise ConfigError(f"run.dir: {root} holds too many runs of this second.")


def versions(job: Job) -> Mapping[str, str]:
    """Python and every distribution that took part."""
    names = {i.distribution for i in job.plugins.classes.values()} | {
        "torch",
        "transformers",
        "renderers",
        "numpy",
        "openai",
        "httpx2",
        "httpx",
    }
    found = {"python": platform.python_version(), "platform": platform.platform(), "argv": " ".join(sys.argv)}
    for name in sorted(names):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_metrics(metrics: Metrics) -> str:
    """The figures that matter most, in one line."""
    parts = [f"{name} {metrics[name]:.3f}" for name in ("reward", "accuracy") if name in metrics]
    parts.append(f"{metrics['episodes']:.0f} episodes")
    parts += [f"{value:.0f} {name}" for name, value in metrics.items() if name.startswith("failed/")]
    return ", ".join(parts)


def _reusable(job: Job, run_dir: Path, step: int) -> dict[str, Episode]:
    """Finished training episodes of an interrupted step. None in a deterministic run, where batches must
    be the same again."""
    if job.config.run.deterministic:
        return {}
    config = job.config
    plans = plan_step(
        job.tasks,
        step,
        batch_size=config.train.batch_size,
        group_size=config.rollout.group_size,
        seed=config.run.seed,
    )
    by_id = {plan.id: plan for plan in plans}
    return {
        line["id"]: episode_from_json(line, by_id[line["id"]])
        for line in live_lines(run_dir / JOURNAL)
        if line["phase"] == "train"
        and line["step"] == step
        and line["failure"] is None
        and line["id"] in by_id
    }


def _recorded_validation(run_dir: Path, *, first: bool) -> Metrics:
    """Validation metrics of the first or last recorded step."""
    lines = [line for line in live_lines(run_dir / METRICS) if line["type"] in ("validation", "greedy")]
    if not lines:
        return {}
    step = lines[0]["step"] if first else lines[-1]["step"]
    together: Metrics = {}
    for line in lines:
        if line["step"] == step:
            prefix = "" if line["type"] == "validation" else f"{line['type']}_"
            together |= {f"{prefix}{k}": v for k, v in line.items() if k not in ("type", "step")}
    return together
