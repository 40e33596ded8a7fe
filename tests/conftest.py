"""Fixtures that several areas share: a real tokenizer, a session on a scripted engine, whole rollouts."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any

import pytest

from ajet.capture.answers import Answerer
from ajet.capture.hook import Capture
from ajet.capture.portal import Portal
from ajet.capture.sampling import SamplingPolicy
from ajet.capture.session import Session, current_session
from ajet.capture.targets import Target
from ajet.chat.renderer import Chat
from ajet.interfaces.engine import Engine
from ajet.interfaces.judge import FunctionJudge, Judge
from ajet.interfaces.workflow import LoadedWorkflow
from ajet.plugins import load_plugins
from ajet.rollout.deterministic_batching import DeterministicBatching
from ajet.rollout.episode import Episode, EpisodeRunner, Plan
from ajet.rollout.scheduler import Rollout
from ajet.rollout.settings import RolloutSettings
from ajet.rollout.watchdog import Board
from ajet.types import Task
from tests.certificates import trust_one
from tests.patience import PATIENCE
from tests.program import ajet as ajet
from tests.recipes import build_models_of
from tests.tiers import thin, within_budget

pytest_plugins = ["tests.elsewhere"]


def pytest_configure() -> None:
    """Ctrl-C works in what tests start, also if they run as a background job, which is to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    trust_one()


# Importing torch and every framework leaves some 600,000 objects, and each run in this process begins with a full
# collection. Frozen, they cost it nothing; so what the end of a run unfreezes is frozen again.
RUNS_BETWEEN_FULL_COLLECTIONS = 20
_unfrozen = 0


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Imports make no garbage that is worth a search."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.unfreeze = _freeze_again(gc.unfreeze)


def _freeze_again(unfreeze: Callable[[], None]) -> Callable[[], None]:
    @wraps(unfreeze)
    def frozen_again() -> None:
        global _unfrozen
        _unfrozen += 1
        unfreeze()
        gc.collect(1 if _unfrozen % RUNS_BETWEEN_FULL_COLLECTIONS else 2)
        gc.freeze()

    return frozen_again


@pytest.hookimpl(tryfirst=True)  # before those with the marker `slow` are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    thin(items)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest's wrapper, which times the test
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    build_models_of(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with within_budget(item):
        return (yield)


with suppress(ImportError):  # some environments of the matrix have none
    from hypothesis import HealthCheck, settings

    # A machine that is busy is no fault of what is tested.
    settings.register_profile("ajet", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("ajet")


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from ajet_local.starter.calculator import Calculator

    return Calculator().tokenizer(0)[0]


@dataclass(frozen=True)
class Hurried:
    """Runs the episodes of some tasks under deadlines of their own: those that are to be cut off. The others then
    have all the time that a busy machine takes."""

    runner: EpisodeRunner
    deadlines: Mapping[str, float]

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """See `Runner`."""
        seconds = self.deadlines.get(plan.task.id, self.runner.timeout)
        return await replace(self.runner, timeout=seconds).run(plan, attempt)


@dataclass
class Bench:
    """An engine behind installed capture."""

    engine: Engine
    portal: Portal
    capture: Capture
    chat: Chat
    lines: list[str] = field(default_factory=list)
    board: Board = field(default_factory=Board)

    def answerer(
        self,
        policy: SamplingPolicy | None = None,
        targets: Sequence[Target] = (Target("policy"),),
        by_text: bool = False,
    ) -> Answerer:
        return Answerer(self.engine, self.chat, targets, policy or SamplingPolicy(training=True), by_text)

    @contextmanager
    def session(self, name: str = "e", **options: Any) -> Iterator[Session]:
        """A block whose LLM calls belong to one episode."""
        session = Session(name, name, self.answerer(**options))
        self.capture.open(session)
        token = current_session.set(session)
        try:
            yield session
        finally:
            current_session.reset(token)
            asyncio.run(self.capture.end(session))

    def run(
        self,
        workflow: Callable[..., Any] | type,
        judge: Judge | Callable[..., Any] = lambda task, output: 1.0,
        *,
        tasks: int = 1,
        group_size: int = 1,
        deterministic: bool = False,
        **settings: Any,
    ) -> list[Episode]:
        """Episodes of a workflow on tasks t0, t1, …"""
        plans = [
            Plan(f"1.{g}/t{g}/{m}", f"{g}/{m}", Task(f"t{g}", f"question {g}"), m, g)
            for g in range(tasks)
            for m in range(group_size)
        ]
        whole = self.rollout(workflow, judge, deterministic=deterministic, group_size=group_size, **settings)
        return asyncio.run(whole.run(plans, lambda episode: None))

    def rollout(
        self,
        workflow: Callable[..., Any] | type,
        judge: Judge | Callable[..., Any] = lambda task, output: 1.0,
        *,
        deterministic: bool = False,
        deadlines: Mapping[str, float] | None = None,
        **settings: Any,
    ) -> Rollout:
        """A rollout of a workflow, for plans of a test's own; ``deadlines`` are those of single tasks, in seconds."""
        rollout = RolloutSettings(**{"retries": 0, **settings})
        step = DeterministicBatching(self.engine) if deterministic else None
        answerer = Answerer(
            step or self.engine, self.chat, (Target("policy"),), SamplingPolicy(training=True)
        )
        is_async = asyncio.iscoroutinefunction(getattr(workflow, "execute", workflow))
        arguments = (
            workflow.execute if isinstance(workflow, type) else workflow
        ).__code__.co_argcount - isinstance(workflow, type)
        plugins = load_plugins()
        runner = EpisodeRunner(
            workflow=LoadedWorkflow("test", workflow, is_async, arguments),
            answerer=answerer,
            capture=self.capture,
            handles=plugins.handles,
            timeout=rollout.timeout,
            board=self.board,
            hook=plugins.manager.hook,
            finds_side_calls=rollout.side_calls == "answer",
        )
        if step:
            runner = replace(runner, excused=step.waited)
        judge = judge if isinstance(judge, Judge) else FunctionJudge(function=judge)
        runs = Hurried(runner, deadlines) if deadlines else runner
        return Rollout(
            runner=runs,
            judge=judge,
            settings=rollout,
            portal=self.portal,
            batching=step,
            say=self.lines.append,
            board=self.board,
        )


@pytest.fixture
def bench() -> Iterator[Callable[..., Bench]]:
    """Make a `Bench` over an engine; capture is installed until the test ends."""
    opened: list[tuple[Capture, Portal, Engine]] = []

    def make(engine: Engine, *, strict: bool = True) -> Bench:
        portal = Portal()
        portal.submit(engine.start()).result(PATIENCE)
        capture = Capture(portal, strict=strict)
        capture.__enter__()
        opened.append((capture, portal, engine))
        return Bench(
            engine,
            portal,
            capture,
            Chat(engine.tokenizer, engine.model_type, vision=getattr(engine, "vision", None)),
        )

    yield make
    for capture, portal, engine in opened:
        capture.__exit__(None, None, None)
        portal.submit(engine.close()).result(PATIENCE)
        portal.close()
