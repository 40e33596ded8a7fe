"""One shadow run: the agent with the model in training, its reward, and the feedback; and how many a runner has had."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from typing import Any

from ajet_online.runner.calling import FunctionCall, Loops
from ajet_online.runner.explorer_client import Commits, ExplorerClient
from ajet_online.runner.patches import intercepted, problems
from ajet_online.runner.shadow import Shadow, current_shadow
from ajet_online.runner.watching import Repeatable

log = logging.getLogger("ajet.online.runner")
Message = Mapping[str, str]
User = Callable[[Sequence[Message]], Any]
_METHODS = ("get_text_content", "to_text")
_PLACES = ("final_output", "messages", "text", "content")


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """What the reward calculator gets of a shadow run."""

    agent: str
    """The agent's name."""
    task: Any
    response: Any
    """What the agent returned, in the last turn; None if it raised."""
    messages: Sequence[Message]
    """The conversation as texts: ``{"role": "user", "content": …}``, and ``assistant`` for the agent."""
    labels: tuple[str, ...]
    """Of the marks in the user's request, and of the selection."""
    metadata: Mapping[str, Any]
    refused_tools: tuple[str, ...]
    """Names of the tools whose calls were refused, in order."""
    seconds: float
    error: BaseException | None
    """What the agent raised."""
    task_id: str
    run_id: int
    """Between 0 and ``repeat - 1``."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What all shadow runs of a runner share."""

    reward: Callable[[ShadowRun], Any]
    user: User | None
    read_only: Collection[str]
    client: ExplorerClient
    counter: Counter
    commits: Commits
    loops: Loops


class ShadowJob:
    """A shadow run that a pool runs once, or drops, or abandons. These methods never raise."""

    def __init__(
        self,
        setup: Setup,
        call: Repeatable,
        response: Any,
        task_id: str,
        run_id: int,
        labels: tuple[str, ...],
        metadata: Mapping[str, Any],
    ) -> None:
        self._setup = setup
        self._repeated, self._response = call, response
        self._task_id, self._run_id = task_id, run_id
        self._labels, self._metadata = labels, metadata
        self._lock = threading.Lock()
        self._call: FunctionCall | None = None
        self._abandoned = False
        self._has_failed = False
        self._has_ended = False

    def run(self) -> None:
        """Run it."""
        counter = self._setup.counter
        try:
            with intercepted():
                if faults := problems():
                    log.warning("no shadow run, as its tools would not be intercepted: %s", "; ".join(faults))
                    counter.add("dropped")
                else:
                    counter.add("shadow_runs")
                    self._rewarded(self._answered())
        except BaseException as error:
            self._failed("the reward of shadow run %s failed: %r", error)
        finally:
            self._end(rated=False)

    def drop(self) -> None:
        """Count it as one that never began."""
        self._setup.counter.add("dropped")
        self._end(rated=False)

    def abandon(self) -> None:
        """Stop waiting for it. An async agent is cancelled; one that is not goes on in its thread, without a reward."""
        with self._lock:
            self._abandoned = True
            if self._call:
                self._call.cancel()
        self._setup.counter.add("timed_out")
        log.warning("shadow run %s was abandoned because it took too long", self._name)
        self._end(rated=False)

    @property
    def _name(self) -> str:
        return f"{self._task_id}.{self._run_id}"

    def _answered(self) -> ShadowRun:
        setup = self._setup
        address, key = setup.client.address(self._task_id, self._run_id)
        shadow = Shadow(address, key, setup.read_only, lambda: setup.counter.add("refused_tools"))
        messages: list[Message] = []
        response, error, started = None, None, time.monotonic()
        try:
            *_, response = self._turns(shadow, messages)
        except BaseException as raised:
            error = raised
            self._failed("shadow run %s failed: %r", raised)
        return ShadowRun(
            self._repeated.agent,
            self._repeated.task,
            response,
            tuple(messages),
            self._labels,
            self._metadata,
            tuple(shadow.refused),
            time.monotonic() - started,
            error,
            self._task_id,
            self._run_id,
        )

    def _turns(self, shadow: Shadow, messages: list[Message]) -> Iterator[Any]:
        """The agent's answers: to the task, and to what the simulated user says."""
        # A context of its own: what a framework keeps in the request's, such as where it streams to, is the user's.
        context = Context()
        context.run(current_shadow.set, shadow)
        agent = context.run(self._repeated.begin, self._response)
        said = copy.deepcopy(self._repeated.task)
        while True:
            messages.append({"role": "user", "content": text_of(said)})
            response = context.run(self._cancellable, agent, said)
            messages.append({"role": "assistant", "content": text_of(response)})
            yield response
            user = self._setup.user
            said = Context().run(self._cancellable, user, tuple(messages)) if user else None
            if said is None:
                return

    def _cancellable(self, function: Callable[..., Any], *args: Any) -> Any:
        with self._lock:
            call = self._call = FunctionCall(self._setup.loops, function, *args)
            if self._abandoned:
                call.cancel()
        return call.result()

    def _rewarded(self, run: ShadowRun) -> None:
        if self._abandoned:
            return
        reward = Context().run(self._cancellable, self._setup.reward, run)
        if reward is None or self._abandoned:
            return
        if not math.isfinite(reward):
            raise ValueError(f"the reward {reward} is not a finite number")
        try:
            self._setup.client.feedback(float(reward), self._task_id, self._run_id)
        except Exception as error:
            if not self._abandoned:
                self._setup.counter.add("feedback_failed")
                log.warning("feedback on shadow run %s failed: %r", self._name, error)
        else:
            self._setup.counter.add("feedback_sent")
            self._end(rated=True)

    def _failed(self, message: str, error: BaseException) -> None:
        """Log a failure, and count the run once."""
        if not self._abandoned:
            log.warning(message, self._name, error)
            if not self._has_failed:
                self._setup.counter.add("failed")
            self._has_failed = True

    def _end(self, *, rated: bool) -> None:
        """Note the end once."""
        with self._lock:
            ended, self._has_ended = self._has_ended, True
        if not ended:
            self._setup.commits.ended(self._task_id, rated=rated)


@dataclass(frozen=True, slots=True)
class Counts:
    """A snapshot of a runner's counters."""

    requests: int = 0
    """Requests that the production model has answered while the runner was started."""
    selected: int = 0
    """Requests that a strategy has selected."""
    shadow_runs: int = 0
    """Shadow runs that have begun."""
    dropped: int = 0
    """Shadow runs that never began: the queue was full, the runner was stopped, or tools cannot be intercepted."""
    failed: int = 0
    """Shadow runs whose agent or reward calculator raised, and requests whose selection raised."""
    timed_out: int = 0
    """Shadow runs that were abandoned: after ``timeout`` seconds, or when the runner stopped."""
    refused_tools: int = 0
    """Tool calls that were refused."""
    feedback_sent: int = 0
    """Rewards that the explorer has taken."""
    feedback_failed: int = 0
    """Rewards that it has not."""
    commits: int = 0
    """Tasks that were committed."""
    commits_failed: int = 0
    """Attempts to commit a task that failed; the task is tried again after the next interval."""


class Counter:
    """Counters that several threads increase."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counts()

    def add(self, name: str, number: int = 1) -> None:
        """Increase the counter with the name of a field of `Counts`."""
        with self._lock:
            self._counts = replace(self._counts, **{name: getattr(self._counts, name) + number})

    @property
    def snapshot(self) -> Counts:
        """The counters now, all read at the same moment."""
        return self._counts


def text_of(value: Any) -> str:
    """The text of a message, of the last of several, or of a framework's result; ``str(value)`` of anything else."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list | tuple):
        return text_of(value[-1]) if value else ""
    for name in _METHODS:
        if hasattr(value, name):
            return text_of(getattr(value, name)())
    for name in _PLACES:
        if isinstance(value, dict) and name in value:
            return text_of(value[name])
        if hasattr(value, name):
            return text_of(getattr(value, name))
    return str(value)
