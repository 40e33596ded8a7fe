"""What is open while episodes run: engine, chat models, judge and capture."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ajet.capture.answers import Answerer
from ajet.capture.context import passthrough
from ajet.capture.gateway.listening import warn_of_network
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.process.garbage import rare_full_collections
from ajet.capture.process.install import InstalledCapture, install
from ajet.capture.process.printed import prints_kept
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.targets import Target
from ajet.capture.wires.builtin import BUILTIN_WIRES
from ajet.chat.images import Images, download
from ajet.chat.renderer import Chat, generation_stops
from ajet.chat.tool_prompt import with_tool_prompt
from ajet.chat.vision import Vision
from ajet.interfaces.algorithm import SelfTaught
from ajet.interfaces.backbone import Trainer
from ajet.interfaces.engine import ChatModelPlugin, Engine, EnginePlugin
from ajet.interfaces.judge import Judge
from ajet.interfaces.workflow import LoadedWorkflow, WorkflowPlugin
from ajet.job import DEFAULT_BACKBONE
from ajet.job.job import Job
from ajet.job.models import generation_config
from ajet.learning.self_teacher import SelfTeacher
from ajet.plugins import Plugins
from ajet.rollout.deterministic_batching import DeterministicBatching
from ajet.rollout.episode import EpisodeRunner
from ajet.rollout.scheduler import Rollout
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.watchdog import Board
from ajet.types import ConfigError, GenerateRequest

log = logging.getLogger("ajet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Everything that is open while episodes run."""

    job: Job
    portal: Portal
    capture: Capture
    installed: InstalledCapture
    engine: Engine | None
    batching: DeterministicBatching | None
    chat: Chat | None
    targets: tuple[Target, ...]
    workflow: LoadedWorkflow
    judge: Judge
    judge_check: Judge | None
    board: Board
    own_models: bool = False

    def rollout(self, policy: SamplingPolicy) -> Rollout:
        """Episodes under a sampling policy."""
        excused = self.batching.waited if self.batching else None
        return Rollout(
            runner=self.runner(policy, excused=excused),
            judge=self.judge,
            judge_check=self.judge_check,
            settings=self.job.config.rollout,
            portal=self.portal,
            batching=self.batching,
            say=self.job.progress.say,
            board=self.board,
        )

    def teacher(self) -> SelfTeacher | None:
        """Writes the hints of an algorithm that learns from feedback; None for others."""
        algorithm = self.job.algorithm
        if not isinstance(algorithm, SelfTaught) or self.chat is None or self.engine is None:
            return None
        return SelfTeacher(algorithm, self.chat, self.engine.context_length)

    def runner(
        self, policy: SamplingPolicy, *, excused: Callable[[str], float] | None = None
    ) -> EpisodeRunner:
        """Attempts at episodes under a sampling policy; ``excused`` is `EpisodeRunner.excused`."""
        settings = self.job.config.rollout
        answerer = Answerer(
            self.batching or self.engine,
            self.chat,
            self.targets,
            policy,
            by_text=settings.merge == "text",
            limit=settings.context_length,
            images=Images(settings.images.limits(), _download),
        )
        return EpisodeRunner(
            workflow=self.workflow,
            answerer=answerer,
            capture=self.capture,
            handles={**self.job.plugins.handles, "as_base_url": self.installed.as_base_url},
            timeout=settings.timeout,
            board=self.board,
            hook=self.job.plugins.manager.hook,
            excused=excused or (lambda episode: 0.0),
            missed=self.installed.missed,
            prompts=self.job.prompts,
            finds_side_calls=settings.side_calls == "answer"
            or (settings.side_calls is None and self.workflow.is_plugin),
            own_models=self.own_models,
        )


@asynccontextmanager
async def open_runtime(
    job: Job,
    *,
    engine: Engine | None,
    answers: ChatModelPlugin | None = None,
    own_models: bool = False,
    shows_prints: bool = False,
) -> AsyncIterator[Runtime]:
    """Start engine, models, workflow, judge and capture; end them all. ``answers`` takes the place of the engine; with
    ``own_models`` nothing does: the workflow's LLM calls go to their own endpoints. What episodes print is kept with them,
    or with ``shows_prints`` goes to the terminal."""
    if told := cut_short(job):
        job.progress.say(told)
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
            adapter = (
                None
                if model or not engine
                else adapter_of(plan.name, engine, named=bool(plan.lora), or_none=plan.side)
            )
            targets.append(
                Target(
                    plan.name,
                    plan.agents,
                    live,
                    plan.trained or plan.side,
                    adapter,
                    models=plan.models,
                    side=plan.side,
                )
            )
        chat = chat_of(engine, job.config.rollout) if engine else None
        batching = DeterministicBatching(engine) if engine and job.config.run.deterministic else None
        address = job.config.rollout.gateway_address
        warn_of_network(address.host, job.progress.say)
        async with AsyncExitStack() as opened:
            workflow = await opened.enter_async_context(job.workflow.open())
            judge = await opened.enter_async_context(job.judge.open())
            check = await opened.enter_async_context(job.judge_check.open()) if job.judge_check else None
            with (
                Capture(
                    portal,
                    strict=job.config.rollout.strict,
                    wires=(*BUILTIN_WIRES, *chain(*job.plugins.manager.hook.ajet_wires())),
                    resolve_agent=(lambda episode, request: resolve(episode=episode, request=request))
                    if resolve.get_hookimpls()
                    else None,
                ) as capture,
                frameworks_prepared(job.plugins.manager.hook, capture),
                install(
                    capture,
                    gateway=job.config.rollout.gateway,
                    refuse_missed=job.config.rollout.missed == "refuse",
                    all_threads=job.config.rollout.threads == "all",
                    models=[target.name for target in targets],
                    host=address.host,
                    port=address.port,
                    url=address.url,
                ) as around,
                rare_full_collections(),
                nullcontext() if shows_prints else prints_kept() as printed,
            ):
                try:
                    yield Runtime(
                        job=job,
                        portal=portal,
                        capture=capture,
                        installed=around,
                        engine=engine,
                        batching=batching,
                        chat=chat,
                        targets=tuple(targets),
                        workflow=workflow,
                        judge=judge,
                        judge_check=check,
                        board=Board(),
                        own_models=own_models,
                    )
                finally:  # also of a run that fails: this may be why
                    for line in [*around.lines(), *(printed.lines() if printed else ())]:
                        job.progress.say(line)
    finally:
        await portal.run(models.aclose())
        if engine:
            await portal.run(engine.close())
        portal.close()


def cut_short(job: Job) -> str:
    """Which tasks give their agents more time than the job gives an episode; empty if none does."""
    plugin, limit = job.workflow.target, job.config.rollout.timeout
    if not isinstance(plugin, WorkflowPlugin):
        return ""
    given = {task.id: plugin.seconds_of(task) or 0.0 for task in (*job.tasks, *job.validation)}
    longer = [name for name, seconds in given.items() if seconds >= limit]
    if not longer:
        return ""
    return (
        f"{len(longer)} of {len(given)} tasks, such as {longer[0]}, let their agents work for up to {max(given.values()):g} s, but "
        f"rollout.timeout ends an episode after {limit:g} s, and what its agent has done by then is not judged. Set it to more."
    )


def chat_of(engine: Engine, settings: RolloutSettings) -> Chat:
    """The chats of an engine's model as a job wants them. Raises ConfigError for a context that the model does not have, and
    for a variable that its chat template does not read."""
    asked = settings.context_length
    if asked is not None and asked > engine.context_length:
        raise ConfigError(
            "rollout.context_length",
            f"{asked} tokens are more than the model's {engine.context_length}. Lower it, or remove it.",
        )
    chat = make_chat(engine.tokenizer, engine.model_type, settings, vision_of_engine(engine))
    if not getattr(engine.tokenizer, "chat_template", None):
        log.warning(
            "the tokenizer of %s has no chat template, so its chats are written as those of %s models are. A base model does not "
            "know them: train an instruction-tuned one, or set tokenizer.chat_template.",
            chat.name,
            engine.model_type,
        )
    return chat


def make_chat(
    tokenizer: Any, model_type: str, settings: RolloutSettings | None = None, vision: Vision | None = None
) -> Chat:
    """The chats of a model as a job's settings want them; without settings, as they are by default. Raises ConfigError for a
    variable that its chat template does not read, for an example of a call from which no reader can be derived, and for a
    tool prompt where the chat template writes tools."""
    settings = settings or RolloutSettings()
    if settings.tool_prompt:
        tokenizer = with_tool_prompt(tokenizer, settings.chat_template)
    config = generation_config(getattr(tokenizer, "name_or_path", ""))
    return Chat(
        tokenizer,
        model_type,
        settings.chat_template,
        vision,
        stops=generation_stops(config) if config else (),
        call_example=settings.call_example,
        reads_calls=settings.tool_calls == "read",
    )


def vision_of_engine(engine: Engine) -> Vision | None:
    """How an engine's model sees images; None if it does not."""
    vision: Vision | None = getattr(engine, "vision", None)
    return vision


async def _download(url: str, most: int) -> bytes:
    with passthrough():
        return await download(url, most)


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


def adapter_of(target: str, engine: Engine, *, named: bool, or_none: bool = False) -> str | None:
    """Which adapter answers a target: its own where it has one (``named``); otherwise, and for a model outside
    of its job, the only one that there is. If it is not clear which: none with ``or_none``, otherwise raises ConfigError."""
    there = list(engine.adapters)
    if not there:
        return None  # the base model, which is what a new adapter answers, too
    if named and target in there:
        return target
    if len(there) == 1 and not named:
        return there[0]
    if or_none:
        return None
    raise ConfigError(
        f"target {target!r}",
        f"the model contains the adapters of {', '.join(there)}, so it is not clear which of them answers. "
        "Name the targets like these, with a lora, or give CHECKPOINT/adapters/NAME as the model.",
    )


def answering_engine(job: Job) -> Engine:
    """The engine plugin of ``eval.engine`` over the job's model or checkpoint, for answering without training."""
    config, spec = job.config, job.config.eval.engine
    if spec.get("type") == "auto":
        own = own_engine(job.plugins, config.backbone.name)
        # Only the backbone's own engine repeats bit for bit, and only it honours the keys that bind.
        bound = config.run.deterministic or own.binding & config.backbone.section(own.backbone).keys()
        name = own.name if bound else preferred_engine(job.plugins, job.model, config.backbone.name)
        spec = {**spec, "type": name}
    return _engine_plugin(job, spec).build(job.model, config.run.seed, job.progress)


def preferred_engine(plugins: Plugins, model: str, backbone: str = DEFAULT_BACKBONE) -> str:
    """The name of the engine that answers from a model if the user names none: one that prefers to, or the backbone's own."""
    faster = next((engine for engine in _engines(plugins) if engine.preferred(model)), None)
    return (faster or own_engine(plugins, backbone)).name


def own_engine(plugins: Plugins, backbone: str) -> type[EnginePlugin]:
    """The engine with which a backbone samples; for backbones without an engine to choose, that of the default backbone.
    Raises ConfigError if it is not installed."""
    by_backbone = {engine.backbone: engine for engine in _engines(plugins)}
    chosen = by_backbone.get(backbone) or by_backbone.get(DEFAULT_BACKBONE)
    return chosen or plugins.get(EnginePlugin, DEFAULT_BACKBONE, "eval.engine")


def _engines(plugins: Plugins) -> list[type[EnginePlugin]]:
    return [engine for _, engine in sorted(plugins.of(EnginePlugin).items())]


def _engine_plugin(job: Job, spec: Mapping[str, Any]) -> EnginePlugin:
    cls: type[EnginePlugin] = job.plugins.of(EnginePlugin).get(str(spec.get("type")), EnginePlugin)
    keys = {k: v for k, v in job.config.backbone.section(cls.backbone).items() if k in cls.model_fields}
    where = f"backbone.{cls.backbone}" if keys and len(spec) == 1 else "eval.engine"
    return job.plugins.build(EnginePlugin, {**keys, **spec}, where)


def scripted_engine(job: Job, path: Path, context_length: int | None = None) -> Engine:
    """An engine that answers from a script, in the tokens and the chat format of the job's model. It takes
    prompts of any length, unless there is a ``context_length``. Raises ConfigError for a file that is not a script."""
    from ajet.services.chat_models import read_script, scripted
    from ajet.services.scripted_engine import ScriptedEngine

    rules = read_script(path)
    own = own_engine(job.plugins, job.config.backbone.name)
    plugin = _engine_plugin(job, {"type": own.name})
    tokenizer, model_type = plugin.tokenizer(job.model, job.config.run.seed)
    vision = plugin.vision(job.model, tokenizer)
    chat = make_chat(tokenizer, model_type, job.config.rollout, vision)

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
        tokenizer, answer, context_length=context_length or sys.maxsize, model_type=model_type, vision=vision
    )


def trainer_of(job: Job, **own: Any) -> Trainer:
    """The trainer of a job whose backbone the core can drive, with arguments of the backbone's ``own``. Raises ConfigError for
    others."""
    config = job.config
    return job.backbone.trainer(
        job.model,
        config.train,
        seed=config.run.seed,
        deterministic=config.run.deterministic,
        progress=job.progress,
        needs=job.algorithm.needs,
        adapters={target.name: target.lora for target in job.targets if target.lora},
        trained=[target.name for target in job.targets if target.trained],
        **own,
    )


def training_policy(job: Job) -> SamplingPolicy:
    """`rollout.sampling`, over the agent's own."""
    s = job.config.rollout.sampling
    exact = s.exact and job.backbone.capabilities.truncated_sampling
    return SamplingPolicy(True, s.temperature, s.top_p, s.top_k, s.max_tokens, s.min_p, exact)


def evaluation_policy(job: Job, temperature: float) -> SamplingPolicy:
    """`eval.sampling`, where the agent says nothing itself."""
    s = job.config.eval.sampling
    return SamplingPolicy(False, temperature, s.top_p, s.top_k, s.max_tokens, s.min_p)
