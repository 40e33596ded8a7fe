"""What is open while episodes run: engine, chat models, judge and capture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Answerer
from ajet.capture.targets import Target
from ajet.chat import Chat
from ajet.engine import ChatModelPlugin, Engine, EnginePlugin
from ajet.job import Job
from ajet.judge import Judge
from ajet.plugins import validated
from ajet.rollout.episode import EpisodeRunner
from ajet.rollout.lockstep import Lockstep
from ajet.rollout.scheduler import Rollout
from ajet.rollout.watchdog import Board
from ajet.types import ConfigError, GenerateRequest


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
        answerer = Answerer(
            self.lockstep or self.engine,
            self.chat,
            self.targets,
            policy,
            by_text=self.job.config.rollout.merge == "text",
        )
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
                if stray := capture.counters["stray_calls"]:
                    job.progress.say(f"{stray} LLM calls outside any episode were refused (rollout.strict)")
    finally:
        await portal.run(models.aclose())
        if engine:
            await portal.run(engine.close())
        portal.close()


def local_engine(job: Job) -> Engine:
    """The engine plugin ``local`` over the job's model, for answering without training; it takes those
    of the job's ``backbone.local`` keys that it has."""
    return _local_plugin(job).build(job.model, job.config.run.seed, job.progress)


def _local_plugin(job: Job) -> EnginePlugin:
    cls = job.plugins.get("engine", "local", "the local engine (pip install ajet-plugin-local)")
    keys = job.config.backbone.section("local").items()
    plugin = validated(cls, {k: v for k, v in keys if k in cls.model_fields}, "backbone.local")
    assert isinstance(plugin, EnginePlugin)
    return plugin


def scripted_engine(job: Job, path: Path) -> Engine:
    """An engine that answers from a script, in the tokens and the chat format of the job's model. Raises
    ConfigError for a file that is no script."""
    from ajet.chat_models import read_script, scripted
    from ajet.testing import ScriptedEngine

    rules = read_script(path)
    tokenizer, model_type = _local_plugin(job).tokenizer(job.model, job.config.run.seed)
    chat = Chat(tokenizer, model_type)

    def answer(request: GenerateRequest, prompt: str) -> str:
        turn = request.key[1]
        rule = next(
            (r for r in rules if r.get("turn", turn) == turn and str(r.get("when", "")) in prompt), None
        )
        if rule is None:
            raise ConfigError(
                f"{path}: no rule fits call {turn} of an episode. Add one without `turn` and `when` at the end."
            )
        return chat.written(scripted(rule, turn))

    return ScriptedEngine(tokenizer, answer, model_type=model_type)


def training_policy(job: Job) -> SamplingPolicy:
    """`rollout.sampling`, over the agent's own."""
    s = job.config.rollout.sampling
    return SamplingPolicy(True, s.temperature, s.top_p, s.top_k, s.max_tokens)


def evaluation_policy(job: Job, temperature: float) -> SamplingPolicy:
    """`eval.sampling`, where the agent says nothing itself."""
    s = job.config.eval.sampling
    return SamplingPolicy(False, temperature, s.top_p, s.top_k, s.max_tokens)
