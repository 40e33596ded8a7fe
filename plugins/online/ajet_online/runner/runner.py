"""The runner: answers requests with the user's own agent, and runs some of them again with the model in training."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import queue
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from ajet_online.runner.frameworks import guard_frameworks
from ajet_online.runner.selection import Context, FirstOf, SamplingRate, Selection, Strategy, marking
from ajet_online.runner.tools import Shadow, in_shadow

log = logging.getLogger("ajet")
Agent = Callable[..., Any]
Reward = Callable[["ShadowRun"], Any]
HTTP_SECONDS = 30.0
COUNTED = (
    "selected",
    "shadow_runs",
    "dropped",
    "failed",
    "timed_out",
    "refused_tools",
    "feedback_sent",
    "feedback_failed",
    "commits",
)


@dataclass(frozen=True, slots=True)
class Model:
    """Where an agent's model answers: any OpenAI-compatible address."""

    base_url: str
    api_key: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRun:
    """A shadow run that has ended, for the reward calculator."""

    task: Any
    response: Any
    """What the agent returned in the shadow run."""
    original: Any
    """What the user got."""
    labels: Sequence[str] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    refused_tools: Sequence[str] = ()
    """Names of the tools that did not run because they are not read-only."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _Job:
    task: Any
    original: Any
    selection: Selection
    task_id: str
    run_id: int


class Runner:
    """Answers requests with ``agent`` and the user's own ``model``; selected requests are run again as shadow runs, with the
    model of the ``explorer``.

    ``agent(task, model)`` is a function, or a coroutine function, that returns the response. A shadow run never delays or
    changes the user's answer, and no error of it reaches the user: it is logged and counted in `counts`. Tools run in it only
    if they are read-only (`ajet_online.read_only`, or their names in ``read_only``). ``reward`` gets each `ShadowRun` that has
    ended and returns a number, or None for no feedback.

    At most ``pool`` shadow runs run at once, and ``queue`` more wait; further ones are dropped. One that takes more than
    ``timeout`` seconds is given up: a coroutine is cancelled, a plain function goes on in its thread, unheeded. ``repeat``
    shadow runs of a request form a group. Feedback is committed every ``commit_interval`` seconds and at the end.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        explorer: str,
        key: str,
        model: Model,
        reward: Reward,
        select: Strategy | Sequence[Strategy] = (),
        repeat: int = 1,
        commit_interval: float = 300.0,
        pool: int = 10,
        queue_size: int = 1000,
        timeout: float = 300.0,
        read_only: Collection[str] = (),
    ) -> None:
        self._agent, self._model, self._reward = agent, model, reward
        self._explorer, self._key = explorer.rstrip("/").removesuffix("/v1"), key
        strategies = select if isinstance(select, Sequence) else [select]
        self._strategy = FirstOf(strategies or [SamplingRate(0.1)])
        self._repeat, self._interval, self._timeout = repeat, commit_interval, timeout
        self._pool, self._read_only = pool, frozenset(read_only)
        self._waiting: queue.Queue[_Job | None] = queue.Queue(queue_size)
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._undo: Callable[[], None] = lambda: None
        self._uncommitted = 0

    @property
    def counts(self) -> dict[str, int]:
        """What has happened so far, by the names in `COUNTED`."""
        with self._counting:
            return {name: self._counts[name] for name in COUNTED}

    # ---------------------------------------------------------------- the user's requests

    def run(self, task: Any, *, task_id: str | None = None) -> Any:
        """The agent's answer, by the user's own model."""
        with marking() as context:
            response = self._agent(task, self._model)
        self._select(task, response, context, task_id)
        return response

    async def arun(self, task: Any, *, task_id: str | None = None) -> Any:
        """As `run`, for an agent that is a coroutine function."""
        with marking() as context:
            response = await self._agent(task, self._model)
        self._select(task, response, context, task_id)
        return response

    def _select(self, task: Any, response: Any, context: Context, task_id: str | None) -> None:
        try:
            selection = self._strategy.select(task, response, context)
        except Exception:
            self._failed("failed", "a selection strategy")
            return
        if not selection.train or not self._threads:
            return
        self._count("selected")
        name = re.sub(r"[^A-Za-z0-9._-]", "_", task_id or uuid.uuid4().hex)[:100]
        for number in range(self._repeat):
            try:
                self._waiting.put_nowait(_Job(task, response, selection, name, number))
            except queue.Full:
                self._count("dropped")

    # ---------------------------------------------------------------- start and end

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to run selected requests again."""
        if self._threads:
            return
        self._stopping.clear()
        self._undo = guard_frameworks()
        targets = [*[self._work] * self._pool, self._commit_regularly]
        self._threads = [
            threading.Thread(target=target, name="ajet-shadow", daemon=True) for target in targets
        ]
        for thread in self._threads:
            thread.start()

    def stop(self, seconds: float = 60.0) -> None:
        """Let waiting shadow runs end, for at most so many seconds, and commit."""
        if not self._threads:
            return
        deadline = time.monotonic() + seconds
        while self._waiting.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.01)
        self._stopping.set()
        while not self._waiting.empty():  # the rest is dropped
            try:
                self._waiting.get_nowait()
                self._count("dropped")
            except queue.Empty:
                break
        for _ in range(self._pool):
            self._waiting.put(None)
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
        self._threads = []
        self._undo()
        self._commit()

    # ---------------------------------------------------------------- shadow runs

    def _work(self) -> None:
        while (job := self._waiting.get()) is not None:
            try:
                self._shadow(job)
            except Exception:
                self._failed("failed", "a shadow run")
            finally:
                self._waiting.task_done()
        self._waiting.task_done()

    def _shadow(self, job: _Job) -> None:
        self._count("shadow_runs")
        run = f"{job.task_id}.{job.run_id}"
        model = Model(f"{self._explorer}/v1", f"{self._key}~{run}", "policy")
        shadow, started = Shadow(self._read_only), time.monotonic()
        try:
            with in_shadow(shadow):
                response = self._within(lambda: self._agent(job.task, model))
        except TimeoutError:
            self._count("timed_out")
            return
        finally:
            self._count("refused_tools", len(shadow.refused))
        ended = ShadowRun(
            task=job.task,
            response=response,
            original=job.original,
            labels=job.selection.labels,
            metadata=job.selection.metadata,
            refused_tools=tuple(shadow.refused),
            seconds=time.monotonic() - started,
        )
        reward = self._within(lambda: self._reward(ended))
        if reward is not None:
            self._send_feedback(run, float(reward), job)

    def _within(self, work: Callable[[], Any]) -> Any:
        """The result of a function or a coroutine function. Raises TimeoutError."""

        def whole() -> Any:
            found = work()
            if not inspect.isawaitable(found):
                return found

            async def awaited() -> Any:
                return await asyncio.wait_for(found, self._timeout)

            return asyncio.run(awaited())

        results: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put((whole(), None))
            except BaseException as error:
                results.put((None, error))

        # In a thread of its own, so that a function that does not return keeps no worker.
        threading.Thread(
            target=contextvars.copy_context().run, args=(run,), name="ajet-shadow-agent", daemon=True
        ).start()
        try:
            result, error = results.get(timeout=self._timeout + 1)
        except queue.Empty:
            raise TimeoutError from None
        if error:
            raise error
        return result

    # ---------------------------------------------------------------- the explorer

    def _send_feedback(self, run: str, reward: float, job: _Job) -> None:
        body = {"run": run, "reward": reward, "task_id": job.task_id, "run_id": job.run_id}
        if self._post("/feedback", body):
            with self._counting:
                self._counts["feedback_sent"] += 1
                self._uncommitted += 1
        else:
            self._count("feedback_failed")

    def _commit_regularly(self) -> None:
        while not self._stopping.wait(self._interval):
            self._commit()

    def _commit(self) -> None:
        with self._counting:
            if not self._uncommitted:
                return
        if self._post("/commit", {}):
            with self._counting:
                self._uncommitted = 0
                self._counts["commits"] += 1

    @cached_property
    def _client(self) -> Any:
        import httpx2

        return httpx2.Client(headers={"Authorization": f"Bearer {self._key}"}, timeout=HTTP_SECONDS)

    def _post(self, path: str, body: Any) -> bool:
        try:
            self._client.post(self._explorer + path, json=body).raise_for_status()
        except Exception as error:
            log.warning("online training: POST %s failed: %s", path, error)
            return False
        return True

    def _count(self, name: str, number: int = 1) -> None:
        with self._counting:
            self._counts[name] += number

    def _failed(self, name: str, what: str) -> None:
        self._count(name)
        log.warning("online training: %s failed", what, exc_info=True)
