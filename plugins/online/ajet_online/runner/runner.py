"""`Runner`: answers requests with the production model, and repeats some of them with the model in training."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from ajet.types import AjetError, ConfigError
from ajet_online.runner.calling import in_event_loop, is_async
from ajet_online.runner.commits import Commits
from ajet_online.runner.counts import Counter, Counts
from ajet_online.runner.explorer_client import ExplorerClient, check_address
from ajet_online.runner.loops import Loops
from ajet_online.runner.marks import Marks, marks_of_request
from ajet_online.runner.model import Model
from ajet_online.runner.patches import intercepted
from ajet_online.runner.pool import Pool
from ajet_online.runner.selection import Request, SamplingRate, Select, Selection, Strategy, as_function
from ajet_online.runner.shadow import in_shadow_run
from ajet_online.runner.shadow_run import Job, Setup, ShadowRun

log = logging.getLogger("ajet.online.runner")


class Runner:
    """An agent whose requests are answered by the production model, some of them a second time by the model in training.

    ``agent(task, model)`` is a function, async or not. ``reward(shadow_run)`` returns a number, or None for no feedback; it may
    be async too. Each selected request has ``repeat`` shadow runs, which are a group. At most ``pool`` of them run at once, in
    threads, and ``queue`` wait; if there is no room, a request has none. A shadow run is abandoned after ``timeout`` seconds.
    Only tools that are declared read-only run in shadow runs: by `read_only`, or by their names in ``read_only``.

    Before `start` and after `stop`, requests are answered, and no more. Raises ConfigError for arguments that cannot work.
    """

    def __init__(
        self,
        agent: Callable[[Any, Model], Any],
        *,
        explorer: str,
        key: str,
        model: Model,
        reward: Callable[[ShadowRun], Any],
        select: Strategy | Select | Sequence[Strategy | Select] | None = None,
        repeat: int = 1,
        commit_interval: float = 300.0,
        pool: int = 10,
        queue: int = 1000,
        timeout: float = 300.0,
        read_only: Collection[str] = (),
    ) -> None:
        if isinstance(read_only, str):
            raise ConfigError(f"read_only={read_only!r}: expected several names, as in ({read_only!r},).")
        numbers = {
            "repeat": repeat,
            "commit_interval": commit_interval,
            "pool": pool,
            "queue": queue,
            "timeout": timeout,
        }
        for name, number in numbers.items():
            if not number > 0:
                raise ConfigError(f"{name}={number!r}: expected more than 0.")
        if repeat > queue:
            raise ConfigError(
                f"repeat={repeat}: the queue has room for {queue}, so no request could be selected."
            )
        check_address(explorer, key)
        self._agent, self._model = agent, model
        self._select = as_function(SamplingRate(0.1) if select is None else select)
        self._explorer, self._key, self._reward = explorer, key, reward
        self._repeat, self._pool, self._queue, self._timeout = repeat, pool, queue, timeout
        self._commit_interval = commit_interval
        self._read_only = frozenset(read_only)
        self._counter = Counter()
        self._live: _Live | None = None

    @property
    def counts(self) -> Counts:
        """What it has done so far."""
        return self._counter.snapshot

    def run(self, task: Any, *, task_id: str | None = None) -> Any:
        """The production model's answer. It raises what the agent raises, and nothing else.

        ``task_id`` names the task in the store; it must be different for each request. Raises AjetError for an async agent
        in a running event loop.
        """
        if is_async(self._agent) and in_event_loop():
            raise AjetError(
                "this agent is async and an event loop is running: use `await runner.arun(task)`."
            )
        request = _Answer(self, task, task_id)
        with request:
            response = self._agent(task, self._model)
            if inspect.isawaitable(response):
                response = asyncio.run(_awaited(response))
        request.answered(response)
        return response

    async def arun(self, task: Any, *, task_id: str | None = None) -> Any:
        """See `run`. An agent that is not async runs in a thread."""
        request = _Answer(self, task, task_id)
        with request:
            if is_async(self._agent):
                response = await self._agent(task, self._model)
            else:
                response = await asyncio.to_thread(self._agent, task, self._model)
                if inspect.isawaitable(response):
                    response = await response
        request.answered(response)
        return response

    def start(self) -> None:
        """Select requests from now on. In a service with several processes, call it in each, after they were forked. Raises
        AjetError if it is started."""
        if self._live_here():
            raise AjetError("this runner is started already.")
        if self._live:  # of the process that has forked this one
            self._counter = Counter()
        client = ExplorerClient(self._explorer, self._key)
        commits = Commits()
        setup = Setup(
            self._agent,
            self._reward,
            self._read_only,
            client,
            self._model.name,
            self._counter,
            commits,
            Loops(),
        )
        self._live = _Live(setup, Pool(self._pool, self._queue, self._timeout), self._commit_interval)

    def stop(self, timeout: float = 30.0) -> None:
        """Select no more requests, wait up to ``timeout`` seconds for shadow runs, abandon the others, and commit. Does
        nothing if it is not started."""
        live, self._live = self._live_here(), None
        if live:
            live.stop(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no shadow run waits or runs, for at most ``timeout`` seconds. Returns whether that is so."""
        live = self._live_here()
        return live is None or live.pool.wait(timeout)

    def __enter__(self) -> Runner:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _live_here(self) -> _Live | None:
        """What is started in this process. A forked process has no threads of its parent, and perhaps its locked locks."""
        live = self._live
        return live if live and live.process == os.getpid() else None


class _Live:
    """What exists between `Runner.start` and `Runner.stop`: threads, connections and patches."""

    def __init__(self, setup: Setup, pool: Pool, commit_interval: float) -> None:
        self.process = os.getpid()
        self.setup, self.pool = setup, pool
        self._interval = commit_interval
        self._open = ExitStack()
        self._open.callback(setup.client.close)
        self._open.enter_context(intercepted())
        self._stopping = threading.Event()
        self._committing = threading.Thread(target=self._commit_regularly, name="ajet-runner", daemon=True)
        self._committing.start()

    def stop(self, timeout: float) -> None:
        """End all of it."""
        until = time.monotonic() + timeout
        with self._open:
            self.pool.wait(timeout)
            self.pool.close()
            self.setup.loops.close()
            self._stopping.set()
            self._committing.join(max(1.0, until - time.monotonic()))
            self._commit(max(time.monotonic() + 1.0, until))

    def _commit_regularly(self) -> None:
        while not self._stopping.wait(self._interval):
            self._commit(time.monotonic() + self._interval)

    def _commit(self, until: float) -> None:
        """Commit each task of which all runs have ended. After a failure, and at the time ``until``, the others stay for the next
        time."""
        setup = self.setup
        for task_id in setup.commits.ready():
            if time.monotonic() > until:
                break
            try:
                setup.client.commit(task_id)
            except Exception as error:
                setup.counter.add("commits_failed")
                log.warning("the commit of task %s failed: %r", task_id, error)
                break
            setup.counter.add("commits")
            setup.commits.done(task_id)


class _Answer(AbstractContextManager[None]):
    """One request. As a block, its marks are noted; once it is answered, it may be selected."""

    def __init__(self, runner: Runner, task: Any, task_id: str | None) -> None:
        # A request of a shadow run's agent is a part of that shadow run.
        self._live = None if in_shadow_run() else runner._live_here()
        self._runner = runner
        self._task_id = task_id
        self._marks = Marks()
        self._started = time.monotonic()
        self._task: Any = None
        self._problem: Exception | None = None
        if self._live:
            try:
                self._task = copy.deepcopy(task)  # the agent may change its own
            except Exception as error:
                self._problem = error

    def __enter__(self) -> None:
        self._token = None if in_shadow_run() else marks_of_request.set(self._marks)

    def __exit__(self, *_: object) -> None:
        if self._token:
            marks_of_request.reset(self._token)

    def answered(self, response: Any) -> None:
        """Select it or not. Never raises."""
        if self._live is None:
            return
        counter = self._live.setup.counter
        try:
            counter.add("requests")
            self._select(self._live, response)
        except Exception as error:
            counter.add("failed")
            log.warning("a request could not be selected: %r", error)

    def _select(self, live: _Live, response: Any) -> None:
        marked, labels, metadata = self._marks.read()
        task_id = uuid.uuid4().hex if self._task_id is None else str(self._task_id)
        seconds = time.monotonic() - self._started
        request = Request(task_id, seconds, marked, labels, metadata)
        decision = self._runner._select(self._task, response, request)
        if decision.train:
            live.setup.counter.add("selected")
            self._start(live, decision, request)

    def _start(self, live: _Live, decision: Selection, request: Request) -> None:
        if self._problem:
            raise TypeError(f"its task cannot be copied, use plain data: {self._problem!r}")
        labels = tuple(dict.fromkeys((*request.labels, *decision.labels)))
        metadata = {**request.metadata, **decision.metadata}
        repeat = self._runner._repeat
        jobs = [Job(live.setup, self._task, request.task_id, n, labels, metadata) for n in range(repeat)]
        live.setup.commits.begin(request.task_id, repeat)
        if not live.pool.put(jobs):
            for job in jobs:
                job.drop()


async def _awaited(awaitable: Any) -> Any:
    return await awaitable
