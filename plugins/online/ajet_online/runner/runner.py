"""`Runner`: repeats some of the calls of the user's agents with the model in training."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar

from ajet import AjetError, ConfigError
from ajet_online.runner.calling import Loops
from ajet_online.runner.explorer_client import Commits, ExplorerClient, check_address
from ajet_online.runner.patches import intercepted
from ajet_online.runner.pool import ShadowPool
from ajet_online.runner.selection import Request, SamplingRate, Select, Selection, Strategy, as_function
from ajet_online.runner.shadow_run import Counter, Counts, Setup, ShadowJob, ShadowRun, User
from ajet_online.runner.watching import Marks, Repeatable, Watcher, watched, watchers

log = logging.getLogger("ajet.online.runner")
F = TypeVar("F", bound=Callable[..., Any])


class Runner:
    """While it is started, some of the calls of the program's agents are repeated by the model in training.

    Watched are calls of AgentScope's agents, LangGraph's graphs, AutoGen's assistants and the OpenAI Agents SDK, and of functions
    that `watch` has wrapped. The user's answer is that of the user's own model. Each selected call has ``repeat`` shadow runs, which
    are a group. ``reward(shadow_run)`` returns a number, or None for no feedback. In a shadow run of several turns,
    ``user(messages)`` returns what the user says next, or None at the end. Both may be async.

    At most ``pool`` shadow runs run at once, in threads, and ``queue`` wait; a call that finds the queue full gets none. A shadow
    run is abandoned after ``timeout`` seconds. Only tools that are declared read-only run in shadow runs: by `read_only`, or by
    their names in ``read_only``. Raises ConfigError for arguments that cannot work.
    """

    def __init__(
        self,
        *,
        explorer: str,
        key: str,
        reward: Callable[[ShadowRun], Any],
        select: Strategy | Select | Sequence[Strategy | Select] | None = None,
        user: User | None = None,
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
        self._select = as_function(SamplingRate(0.1) if select is None else select)
        self._explorer, self._key, self._reward, self._user = explorer, key, reward, user
        self._repeat, self._pool, self._queue, self._timeout = repeat, pool, queue, timeout
        self._commit_interval = commit_interval
        self._read_only = frozenset(read_only)
        self._counter = Counter()
        self._live: _Live | None = None

    @property
    def counts(self) -> Counts:
        """What it has done so far."""
        return self._counter.snapshot

    def watch(self, function: F) -> F:
        """The function, each call of which is a request of this runner: for agents of other frameworks, or of several agents that
        answer together. It may be async, or a generator. Its first parameter is the task; the other arguments are passed on as they
        are.

        Raises ConfigError for a method in a class body, and for a function in C that does not tell its parameters.
        """
        try:
            first = next(iter(inspect.signature(function).parameters), "")
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"watch({function!r}): its parameters are not known ({error}). Watch a function that calls it, such as "
                "`lambda task: ...`."
            ) from None
        if first == "self":
            raise ConfigError(
                f"watch({getattr(function, '__qualname__', function)}): its first parameter is `self` instead of the task. Watch the "
                "method of an object: `agent.answer = runner.watch(agent.answer)`."
            )
        name = str(getattr(function, "__name__", type(function).__name__))

        def describe(*args: Any, **kwargs: Any) -> Repeatable:
            task = copy.deepcopy(args[0] if args else kwargs.get(first))

            def again(said: Any) -> Any:
                if args:
                    return function(said, *args[1:], **kwargs)
                return function(**{**kwargs, first: said} if first in kwargs else kwargs)

            return Repeatable(name, task, lambda response: again)

        wrapped: Any = watched(function, describe, self._live_here)
        return wrapped  # type: ignore[no-any-return]

    def start(self) -> None:
        """Repeat calls from now on. In a service with several processes, call it in each, after they were forked. Raises
        AjetError if it is started."""
        if self._live_here():
            raise AjetError("this runner is started already.")
        if self._live:  # of the process that has forked this one
            self._counter = Counter()
        setup = Setup(
            self._reward,
            self._user,
            self._read_only,
            ExplorerClient(self._explorer, self._key),
            self._counter,
            Commits(),
            Loops(),
        )
        pool = ShadowPool(self._pool, self._queue, self._timeout)
        self._live = _Live(setup, pool, self._select, self._repeat, self._commit_interval)

    def stop(self, timeout: float = 30.0) -> None:
        """Repeat no more calls, wait up to ``timeout`` seconds for shadow runs, abandon the others, and commit. Does nothing if it
        is not started."""
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


class _Live(Watcher):
    """What exists between `Runner.start` and `Runner.stop`: threads, connections and patches."""

    def __init__(
        self, setup: Setup, pool: ShadowPool, select: Select, repeat: int, commit_interval: float
    ) -> None:
        self.process = os.getpid()
        self.setup, self.pool = setup, pool
        self._select, self._repeat = select, repeat
        self._interval = commit_interval
        self._open = ExitStack()
        self._open.callback(setup.client.close)
        self._open.enter_context(intercepted())
        self._stopping = threading.Event()
        self._committing = threading.Thread(target=self._commit_regularly, name="ajet-runner", daemon=True)
        self._committing.start()
        watchers.append(self)

    def answered(self, call: Repeatable, response: Any, marks: Marks, seconds: float) -> None:
        """See `Watcher.answered`: select it or not."""
        try:
            self.setup.counter.add("requests")
            request = Request(call.agent, uuid.uuid4().hex, seconds, *marks.read())
            decision = self._select(call.task, response, request)
            if decision.train:
                self.setup.counter.add("selected")
                self._begin(call, response, decision, request)
        except Exception as error:
            self._failed("a request could not be selected: %r", error)

    def not_noted(self, error: Exception) -> None:
        """See `Watcher.not_noted`."""
        self.setup.counter.add("requests")
        self._failed(
            "a request cannot be repeated, as its task or its agent's state cannot be copied: %r", error
        )

    def _failed(self, message: str, error: Exception) -> None:
        self.setup.counter.add("failed")
        log.warning(message, error)

    def _begin(self, call: Repeatable, response: Any, decision: Selection, request: Request) -> None:
        labels = tuple(dict.fromkeys((*request.labels, *decision.labels)))
        metadata = {**request.metadata, **decision.metadata}
        jobs = [
            ShadowJob(self.setup, call, response, request.task_id, n, labels, metadata)
            for n in range(self._repeat)
        ]
        self.setup.commits.begin(request.task_id, len(jobs))
        if not self.pool.put(jobs):
            for job in jobs:
                job.drop()

    def stop(self, timeout: float) -> None:
        """End all of it."""
        watchers.remove(self)
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
