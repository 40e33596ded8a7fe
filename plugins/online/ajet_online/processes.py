"""What the processes of online training do: the explorer, and the trainer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ajet import Task
from ajet.capture.gateway.listening import warn_of_network
from ajet.capture.gateway.stopping import stopped
from ajet.capture.sampling import SamplingPolicy
from ajet.interfaces.base import Plugin
from ajet.interfaces.engine import Engine, EnginePlugin
from ajet.interfaces.progress import Progress
from ajet.job.config import BackboneSettings, Layers, parse_set
from ajet.job.layers import job_layers, lay_sets
from ajet.job.objects import lay_object
from ajet.job.parts import JobParts
from ajet.plugins import load_plugins, validated
from ajet.rollout.settings import RolloutSettings
from ajet.runs.runtime import preferred_engine
from ajet.runs.serve import answering
from ajet.utils.files import writing
from ajet_online.explorer import exploring
from ajet_online.following import Follower, newest_loaded
from ajet_online.keys import Keys
from ajet_online.lifeline import hold_on
from ajet_online.overview import note_bounds
from ajet_online.settings import OnlineSettings, online_settings
from ajet_online.store import TraceStore
from ajet_online.switching import SwitchingEngine
from ajet_online.trace import Message
from ajet_online.versions import Versions


@dataclass(frozen=True, slots=True)
class Exploring:
    """What an explorer serves, and where it records."""

    model: str
    """Version 0: a folder, a Hugging Face id or a recipe."""
    settings: OnlineSettings
    build: Callable[[str], Engine]
    policy: SamplingPolicy
    rollout: RolloutSettings
    """Of the job: the context and the chat template apply."""


def given(
    model: str,
    *,
    engine: str | None,
    store: str | None,
    temperature: float | None,
    max_tokens: int | None,
    seed: int | None,
    sets: Iterable[str],
    progress: Progress,
) -> Exploring:
    """What the arguments of `ajet online explore` say. ``model`` may be a job file; then ``sets`` are keys of the job, otherwise
    of the engine. Raises ConfigError."""
    is_job = model.endswith((".yaml", ".yml"))
    layers = job_layers(Path(model) if is_job else None)
    if is_job:
        lay_sets(layers, sets)
    settings = _with_store(online_settings(layers), store)
    lay_defaults(layers, settings)
    job = layers.job()
    source = _source(layers, job.model if is_job else model)
    plugins, parts = load_plugins(), JobParts(layers, readers=False)
    spec = {"type": engine} if engine else dict(parts.spec("engine", job.eval.engine, "eval.engine"))
    name = spec.pop("type", "auto")
    if name == "auto":
        name = preferred_engine(plugins, source, job.backbone.name)
    cls = plugins.get(EnginePlugin, name, "engine=")
    backbone = parts.resolved(BackboneSettings, job.backbone, "backbone")
    keys = _keys(cls, backbone.section(cls.backbone)) | spec
    keys |= {} if is_job else dict(parse_set(text) for text in sets)
    plugin = validated(cls, keys, "set=")
    seed = job.run.seed if seed is None else seed
    sampling = job.rollout.sampling
    policy = SamplingPolicy(
        False,
        sampling.temperature if temperature is None else temperature,
        sampling.top_p,
        sampling.top_k,
        max_tokens or sampling.max_tokens,
    )
    return Exploring(source, settings, lambda path: plugin.build(path, seed, progress), policy, job.rollout)


ONE_KEY = (
    "all clients have one key, so rollback takes them for one user: a few who rate to harm can have a good version withdrawn; "
    "--keys gives groups of users keys of their own"
)


def explore(
    what: Exploring,
    keys: Keys,
    *,
    host: str | None,
    port: int | None,
    most_calls: int,
    redact: Callable[[Message], Message] | None = None,
    say: Callable[[str], None],
    ready: Callable[[str], None],
) -> None:
    """Answer calls with the version that the store says, until Ctrl-C or SIGTERM. ``host`` and ``port`` are the settings' if None;
    ``ready`` is told the URL."""
    host = what.settings.host if host is None else host
    port = what.settings.port if port is None else port
    warn_of_network(host, say)
    if what.settings.rollback.enabled and keys.are_one:
        say(ONE_KEY)
    with ExitStack() as stack:
        store = TraceStore.open(what.settings.store)
        stack.callback(store.close)
        versions = Versions(store)
        versions.begin(what.model)
        engine = SwitchingEngine(newest_loaded(versions, what.build))
        portal, answerer = stack.enter_context(answering(engine, what.policy, what.rollout))
        name = Path(what.model).name
        note_bounds(store, what.settings.rewards)
        follower = Follower(store, engine, portal, what.build, what.settings, lambda text: say(dated(text)))
        explorer = exploring(
            portal,
            answerer,
            store,
            keys,
            models=[name],
            host=host,
            port=port,
            most_calls=most_calls,
            rewards=what.settings.rewards,
            redact=redact,
            drain=what.settings.drain,
            further=lambda: follower.metrics,
        )
        url, gateway = stack.enter_context(explorer)
        stack.enter_context(follower.running())
        stop = stack.enter_context(stopped(what.settings.drain))
        hold_on()
        ready(url)
        while not stop.wait(1.0):
            pass
    print(f"{gateway.meter.calls.total()} calls answered")


def train(job_file: Path, *, store: str | None, updates: int | None, sets: Iterable[str]) -> None:
    """Train a job until Ctrl-C or SIGTERM, or after ``updates`` updates. Raises AjetError."""
    import signal

    from ajet.interfaces.progress import reporting_to
    from ajet.job.layers import import_from_here
    from ajet.job.prepare import prepare
    from ajet.reports.progress import make_progress
    from ajet.runs.run_dir import held, new_run_dir
    from ajet.services.supervisor import with_services
    from ajet.utils.terminal import tell
    from ajet_online.trainer import OnlineTrainer

    layers = job_layers(job_file)
    lay_sets(layers, sets)
    settings = _with_store(online_settings(layers), store)
    if updates:
        settings = settings.model_copy(update={"updates": updates})
    lay_defaults(layers, settings)
    import_from_here()
    with ExitStack() as stack:
        stack.enter_context(with_services(layers, ()))
        progress = stack.enter_context(make_progress())
        stack.enter_context(reporting_to(progress))
        job = prepare(layers).with_progress(_Rounds(progress))
        opened = TraceStore.open(settings.store)
        stack.callback(opened.close)
        folder = Path(settings.folder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(held(folder, tell))
        run_dir = _run_dir(folder) or new_run_dir(job)
        trainer = OnlineTrainer(job=job, store=opened, settings=settings, run_dir=run_dir, say=progress.say)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: _end(trainer))
        hold_on()
        if not job.validation:
            progress.say("there are no task.validation, so every candidate is published")
        trainer.run()


def _end(trainer: Any) -> None:
    """The first signal lets the update in progress end; the second one does not."""
    if trainer.stop.is_set():
        raise KeyboardInterrupt
    trainer.stop.set()


class _Rounds:
    """Progress without what a single run says at its start."""

    def __init__(self, inner: Progress) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def started(self, run_dir: Path) -> None:
        """The folder is the same for all updates."""

    def say(self, text: str) -> None:
        if not text.startswith(("resuming ", "validation ")):
            self._inner.say(dated(text))


def dated(text: str) -> str:
    """A line for a log, with the time: ``2026-01-31T12:00:00+01:00 version 1 is served``."""
    return f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}"


def _run_dir(folder: Path) -> Path | None:
    """The newest run folder in a folder; None if there is none."""
    return max((path.parent for path in folder.glob("*/job.yaml")), default=None)


def lay_defaults(layers: Layers, settings: OnlineSettings) -> None:
    """What a job need not say for online training."""
    here = Path.cwd()
    layers.set("run.dir", settings.folder, "plugins.online.folder", here)
    lay_object(layers, "task.reader", [Task("recorded")], "ajet online")  # tasks come from the store
    if layers.source_of("train.algorithm") == "default":
        layers.set("train.algorithm", "reinforce", "default of `ajet online`", here)
    if layers.source_of("workflow") == "default":
        layers.set("workflow", "ajet_online.answer:answer", "default of `ajet online`", here)
    algorithm = layers.job().train.algorithm.get("type")
    if algorithm == "kto" and layers.source_of("train.reference") == "default":
        layers.set("train.reference", layers.job().model, "default of `ajet online`: the first model", here)


def _with_store(settings: OnlineSettings, store: str | None) -> OnlineSettings:
    return settings.model_copy(update={"store": store}) if store else settings


def _source(layers: Layers, model: str) -> str:
    path = layers.base_of("model") / Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def _keys(cls: type[Plugin], section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key in cls.model_fields}
