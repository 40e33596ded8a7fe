"""What is open while episodes run: engine, chat models, judge and capture."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.process.install import Reach, reach
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Answerer
from ajet.capture.targets import Target
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.chat.renderer import Chat
from ajet.interfaces.engine import ChatModelPlugin, Engine, EnginePlugin
from ajet.interfaces.judge import Judge
from ajet.job.prepare import Job
from ajet.plugins import Plugins, validated
from ajet.rollout.deterministic_batching import Lockstep
from ajet.rollout.episode import EpisodeRunner
from ajet.rollout.scheduler import Rollout
from ajet.rollout.watchdog import Board
from ajet.types import ConfigError, GenerateRequest

log = logging.getLogger("ajet")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that is open while episodes run."""

    job: Job
    portal: Portal
    capture: Capture
    reach: Reach
    engine: Engine | None
    lockstep: Lockstep | None
    chat: Chat | None
    targets: tuple[Target, ...]
    judge: Judge
    board: Board

    def rollout(self, policy: SamplingPolicy) -> Rollout:
        """Episodes under a sampling policy."""
        excused = self.lockstep.waited if self.lockstep else None
        return Rollout(
            self.runner(policy, excused=excused),
            self.judge,
            self.job.config.rollout,
            self.portal,
            self.lockstep,
            self.job.progress.say,
            self.board,
        )

    def runner(
        self, policy: SamplingPolicy, *, excused: Callable[[str], float] | None = None
    ) -> EpisodeRunner:
        """Attempts at episodes under a sampling policy; ``excused`` is `EpisodeRunner.excused`."""
        settings = self.job.config.rollout
        answerer = Answerer(
            self.lockstep or self.engine,
            self.chat,
            self.targets,
            policy,
            by_text=settings.merge == "text",
        )
        return EpisodeRunner(
            self.job.workflow,
            answerer,
            self.capture,
            {**self.job.plugins.handles, "as_base_url": self.reach.gateway.as_base_url},
            settings.timeout,
            self.board,
            self.job.plugins.manager.hook,
            excused or (lambda episode: 0.0),
            self.reach.missed,
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
            adapter = None if model or not engine else adapter_of(plan.name, engine, named=bool(plan.lora))
            targets.append(Target(plan.name, plan.agents, live, plan.trained, adapter))
        chat = Chat(engine.tokenizer, engine.model_type) if engine else None
        lockstep = Lockstep(engine) if engine and job.config.run.deterministic else None
        async with job.judge.open() as judge:
            with (
                Capture(
                    portal,
                    strict=job.config.rollout.strict,
                    wires=(*BUILTIN_WIRES, *chain(*job.plugins.manager.hook.ajet_wires())),
                    resolve_agent=lambda episode, request: resolve(episode=episode, request=request),
                ) as capture,
                frameworks_prepared(job.plugins.manager.hook, capture),
                reach(
                    capture,
                    gateway=job.config.rollout.gateway,
                    refuse_missed=job.config.rollout.missed == "refuse",
                    all_threads=job.config.rollout.threads == "all",
                    models=[target.name for target in targets],
                ) as around,
                rare_full_collections(),
            ):
                try:
                    yield Runtime(
                        job, portal, capture, around, engine, lockstep, chat, tuple(targets), judge, Board()
                    )
                finally:  # also of a run that fails: this may be why
                    for line in around.lines():
                        job.progress.say(line)
    finally:
        await portal.run(models.aclose())
        if engine:
            await portal.run(engine.close())
        portal.close()


@contextmanager
def frameworks_prepared(hook: Any, capture: Capture) -> Iterator[None]:
    """A block in which the plugins have changed their frameworks as capture needs it."""
    with ExitStack() as undo:
        for plugin in hook.ajet_capture_install.get_hookimpls():
            try:
                undo.callback(plugin.function(capture=capture))
            except Exception as error:
                log.warning("%s: its framework's agents are not told apart: %r", plugin.plugin_name, error)
        yield


def adapter_of(target: str, engine: Engine, *, named: bool) -> str | None:
    """Which adapter answers a target: its own where it has one (``named``); otherwise, and for a model outside
    of its job, the only one that there is. Raises ConfigError if it is not clear which."""
    there = list(engine.adapters)
    if not there:
        return None  # the base model, which is what a new adapter answers, too
    if named and target in there:
        return target
    if len(there) == 1 and not named:
        return there[0]
    raise ConfigError(
        f"target {target!r}: the model contains the adapters of {', '.join(there)}, so it is not clear which of them answers. "
        "Name the targets like these, with a lora, or give CHECKPOINT/adapters/NAME as the model."
    )


def answering_engine(job: Job) -> Engine:
    """The engine plugin of ``eval.engine`` over the job's model or checkpoint, for answering without training; ``local``
    takes those of the job's ``backbone.local`` keys that it has."""
    name = job.config.eval.engine
    if name == "auto":
        # Only the local engine repeats bit for bit, and only it goes to the device that is asked for.
        bound = job.config.run.deterministic or "device" in job.config.backbone.section("local")
        name = "local" if bound else preferred_engine(job.plugins, job.model)
    if name == "local":
        return _local_plugin(job).build(job.model, job.config.run.seed, job.progress)
    plugin = validated(job.plugins.get("engine", name, "eval.engine"), {}, "eval.engine")
    assert isinstance(plugin, EnginePlugin)
    return plugin.build(job.model, job.config.run.seed, job.progress)


def preferred_engine(plugins: Plugins, model: str) -> str:
    """The name of the engine that answers from a model where the user names none: vllm where it and CUDA are there."""
    engines = [found.cls for (kind, _), found in sorted(plugins.classes.items()) if kind == "engine"]
    return next((e.name for e in engines if issubclass(e, EnginePlugin) and e.preferred(model)), "local")


def _local_plugin(job: Job) -> EnginePlugin:
    cls = job.plugins.get("engine", "local", "the local engine (pip install ajet-plugin-local)")
    keys = job.config.backbone.section("local").items()
    plugin = validated(cls, {k: v for k, v in keys if k in cls.model_fields}, "backbone.local")
    assert isinstance(plugin, EnginePlugin)
    return plugin


def scripted_engine(job: Job, path: Path, context_length: int | None = None) -> Engine:
    """An engine that answers from a script, in the tokens and the chat format of the job's model. It takes
    prompts of any length, unless there is a ``context_length``. Raises ConfigError for a file that is not a script."""
    from ajet.services.chat_models import read_script, scripted
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

    return ScriptedEngine(
        tokenizer, answer, context_length=context_length or sys.maxsize, model_type=model_type
    )


def training_policy(job: Job) -> SamplingPolicy:
    """`rollout.sampling`, over the agent's own."""
    s = job.config.rollout.sampling
    return SamplingPolicy(True, s.temperature, s.top_p, s.top_k, s.max_tokens)


def evaluation_policy(job: Job, temperature: float) -> SamplingPolicy:
    """`eval.sampling`, where the agent says nothing itself."""
    s = job.config.eval.sampling
    return SamplingPolicy(False, temperature, s.top_p, s.top_k, s.max_tokens)
