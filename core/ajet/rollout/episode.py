"""One attempt at an episode: a new workflow instance, its captured calls, and a deadline."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from ajet.capture.answers import Answerer
from ajet.capture.context import passing_through
from ajet.capture.demonstrated import DemonstratedReplay, Demonstration
from ajet.capture.fork_replay import ForkReplay
from ajet.capture.hook import BASE_URL, Capture
from ajet.capture.judge_calls import JudgeCall
from ajet.capture.process.printed import Printed, printed_by_episode
from ajet.capture.process.uncaptured import Listener, Missed
from ajet.capture.session import Session, current_session
from ajet.interfaces.events import Attempt
from ajet.interfaces.prompts import Prompts, current_prompts
from ajet.interfaces.workflow import LoadedWorkflow, Tuner, WorkflowFailed, coerce_output
from ajet.rollout.deadline import DeadlinePassed, within
from ajet.rollout.failures import Failure, FailureKind, workflow_failure
from ajet.rollout.watchdog import Board
from ajet.tracker.breaks import Break, find_breaks
from ajet.tracker.call import Exchange
from ajet.tracker.record import EpisodeRecord, sampled
from ajet.tracker.side_calls import side_calls
from ajet.types import ContractBroken, EpisodeView, Metrics, Spent, Task, WorkflowOutput
from ajet.utils.breakpoints import under_debugger
from ajet.utils.threads import in_thread

log = logging.getLogger("ajet")


@dataclass(frozen=True, slots=True)
class Fork:
    """Where an episode leaves another one: its first calls are answered from the record of its parent."""

    parent: str
    """The id of the episode that is run again; it may be a fork itself."""
    calls: int
    """How many of the parent's first calls are answered from its record, in the order of `EpisodeRecord.path`: at least one, and
    not all."""
    record: EpisodeRecord | Demonstration | None = field(default=None, compare=False, repr=False)
    """The parent's record, or a demonstration; None once the episode has ended."""
    steered: bool = False
    """Whether the parent is of an earlier step, and all independent episodes of the group begin with these calls."""


@dataclass(frozen=True, slots=True)
class RecordedTask(Task):
    """A task whose episodes took place before: no workflow runs and no judge is asked, `replay` says what happened. The backbones
    learn from them like from those that they run."""

    @abstractmethod
    def replay(self, record: EpisodeRecord, member: int) -> WorkflowOutput | None:
        """Add the calls of a member's episode to ``record``, with the logprobs and weight versions with which they were
        sampled. Returns the episode's output, whose reward counts; None if the task has no such member."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Plan:
    """An episode to run: ``member`` of the group of ``task``."""

    id: str
    seed_key: str
    task: Task
    member: int
    group: int
    fork: Fork | None = None
    """None if the model answers all its calls."""

    @property
    def is_fork(self) -> bool:
        """Whether it leaves another episode of its group."""
        return self.fork is not None and not self.fork.steered

    @property
    def is_steered(self) -> bool:
        """Whether it begins, as its whole group, with calls of an earlier episode."""
        return self.fork is not None and self.fork.steered


@dataclass(slots=True)
class Episode:
    """The outcome of one episode."""

    plan: Plan
    attempt: int
    output: WorkflowOutput
    record: EpisodeRecord
    counters: Counter[str] = field(default_factory=Counter)
    failed: Failure | None = None
    """None if it was judged."""
    reward: float = 0.0
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Rewards of single agents and targets, by name, if they differ from ``reward``."""
    call_rewards: Mapping[int, float] = field(default_factory=dict)
    """Rewards of single calls, by number."""
    is_success: bool | None = None
    metrics: Metrics = field(default_factory=dict)
    feedback: str = ""
    """The judge's verdict in words."""
    breaks: tuple[Break, ...] = ()
    """Where a call could have continued a conversation, but did not."""
    missed: tuple[Missed, ...] = ()
    """Connections that capture does not see."""
    judge_calls: Sequence[JudgeCall] = ()
    """The LLM calls of its judge, or of the judge of its group."""
    started: float = 0.0
    """When the attempt began, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    spent: Spent = field(default_factory=Spent)
    """What the LLM calls of all its attempts used."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The texts that its workflow asked for with `ajet.prompt`, by name: those that it gets without tuning."""
    printed: Printed = field(default_factory=Printed)
    memory: int = 0
    """The most bytes that its programs had in memory at once; 0 if unknown."""

    @property
    def id(self) -> str:
        """That of its plan."""
        return self.plan.id

    @property
    def failure(self) -> str | None:
        """The cause of its failure."""
        return self.failed.cause if self.failed else None

    @property
    def error(self) -> str:
        """The failure in words; empty without one."""
        return self.failed.text if self.failed else ""

    def view(self) -> EpisodeView:
        """What a judge gets to see."""
        plan, chats = self.plan, _LazyChats(self.record.exchanges)
        return EpisodeView(plan.id, plan.task.id, plan.member, self.attempt, chats, self.output, self.failure)


@dataclass(frozen=True, slots=True)
class _LazyChats(Sequence[Sequence[Mapping[str, Any]]]):
    """The chat of each call, built when it is read: all chats of a long episode would be large."""

    exchanges: Sequence[Exchange]

    def __len__(self) -> int:
        return len(self.exchanges)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [e.chat() for e in self.exchanges[index]]
        return self.exchanges[index].chat()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRunner:
    """Runs attempts at episodes with one workflow and one answerer. Raises only on cancellation, and what ends the whole run."""

    workflow: LoadedWorkflow
    answerer: Answerer
    capture: Capture
    handles: Mapping[str, Callable[..., Any]]
    timeout: float
    board: Board
    hook: Any
    """The plugin manager's hook caller, for `ajet_attempt`."""
    excused: Callable[[str], float] = lambda episode: 0.0
    """Returns the seconds of an episode that its deadline does not count."""
    missed: Listener | None = None
    """What notes the connections that capture does not see."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """The job's texts for `ajet.prompt`."""
    finds_side_calls: bool = False
    """Whether the calls beside the agent's work are found, so that they are not trained."""
    own_models: bool = False
    """Whether the workflow's LLM calls go to their own endpoints, and are not recorded."""

    async def run(self, plan: Plan, attempt: int) -> Episode:
        """Run one attempt. The result names the cause of a failure."""
        if isinstance(plan.task, RecordedTask):
            return _replayed(plan, plan.task, attempt)
        loop = asyncio.get_running_loop()
        began, started = time.time(), loop.time()
        session = Session(plan.id, f"{plan.seed_key}#{attempt}", self.answerer, replay=_fork_replay(plan))
        session.on_change = lambda: self.board.set(plan.id, "engine" if session.in_flight else "workflow")
        self.capture.open(session)
        self.board.set(plan.id, "workflow")
        prompts, printed = Prompts(self.prompts), Printed()
        told, entered = Attempt(plan.id), list[AbstractAsyncContextManager[Any]]()
        try:
            output, failed, missed = await self._ended(plan, session, told, entered, prompts, printed)
            told.failure = failed.cause if failed else None
        finally:
            await _leave(entered, session)
        if told.metadata:
            output = replace(output, metadata={**told.metadata, **output.metadata})
        if self.finds_side_calls:
            for call in side_calls(session.record, (output.response, output.metadata)):
                call.side = True
        replayed = {call.number for call in session.record.calls if call.replayed}
        return Episode(
            replace(plan, fork=plan.fork and replace(plan.fork, record=None)),
            attempt,
            output,
            session.record,
            session.counters,
            failed,
            breaks=tuple(b for b in find_breaks(session.record) if b.call not in replayed),
            missed=missed,
            started=began,
            seconds=loop.time() - started,
            spent=session.spent,
            prompts=prompts.asked,
            printed=printed,
            memory=session.memory,
        )

    async def _ended(
        self,
        plan: Plan,
        session: Session,
        told: Attempt,
        entered: list[AbstractAsyncContextManager[Any]],
        prompts: Prompts,
        printed: Printed,
    ) -> tuple[WorkflowOutput, Failure | None, tuple[Missed, ...]]:
        """The workflow's output, why it failed, and the connections that capture has missed. What plugins have ``entered`` is left
        by the caller."""
        output, failed = WorkflowOutput(), None
        excused = self.excused(plan.id)  # by earlier attempts
        try:
            for manager in self.hook.ajet_attempt(attempt=told):
                await manager.__aenter__()
                entered.append(manager)
            output = coerce_output(
                await within(
                    self._deadline(),
                    self._execute(plan, session, prompts, printed),
                    lambda: self.excused(plan.id) - excused,
                    f"the workflow of episode {plan.id}",
                    asyncio.wrap_future(session.replay.diverged) if session.replay else None,
                )
            )
        except DeadlinePassed:
            calls = len(session.record.calls)
            text = f"no result within {self.timeout:g} s and {calls} calls; {self.board.describe(1)}"
            failed = Failure(FailureKind.TIMEOUT, text=text)
        except ContractBroken:
            raise
        except Exception as exception:
            failed = workflow_failure(exception)
        finally:
            await self.capture.end(session)
            self.board.set(plan.id, None)
            missed = self.missed.end(session.key) if self.missed else ()
        received = sampled(call for call in session.record.calls if not call.replayed)
        if lost := session.sampled - received:  # `ajet audit` asks where every token went
            session.counters["tokens_not_received"] = lost
        if session.abandoned:
            session.counters["abandoned"] = session.abandoned
        calls = self.workflow.calls_model and not self.own_models
        return output, _explain(session, failed, missed, self.workflow if calls else None), missed

    async def _execute(self, plan: Plan, session: Session, prompts: Prompts, printed: Printed) -> Any:
        frozen = tuple(t.name for t in self.answerer.targets if t.model)
        tuner = Tuner(BASE_URL, session.key, self.handles, frozen, session.limit)
        # Set in the context of this attempt's own task, which ends with it: nothing needs a reset.
        current_session.set(session)
        current_prompts.set(prompts)
        printed_by_episode.set(printed)
        passing_through.set(self.own_models)
        if self.missed:
            self.missed.begin(session.key)
        if self.workflow.is_async:
            returned = await self.workflow.fresh()(plan.task, tuner)
        else:
            returned = await in_thread(lambda: self._call(plan.task, tuner), plan.id)
            # A decorator or an object with an async __call__ hides that the workflow is a coroutine.
            returned = await returned if inspect.isawaitable(returned) else returned
        if inspect.iscoroutine(returned):
            returned.close()
            called = returned.__qualname__
            raise WorkflowFailed(
                "returned_coroutine",
                f"the workflow returned the coroutine {called}, which never ran: write `return await {called}(…)`",
            )
        return returned

    def _call(self, task: Task, tuner: Tuner) -> Any:
        if self.missed:
            self.missed.in_this_thread(tuner.api_key)
        return self.workflow.fresh()(task, tuner)

    def _deadline(self) -> float | None:
        return None if under_debugger() else self.timeout


async def _leave(entered: Sequence[AbstractAsyncContextManager[Any]], session: Session) -> None:
    """Leave the context managers of plugins, the last one first. An exception is counted."""
    for manager in reversed(entered):
        try:
            await manager.__aexit__(None, None, None)
        except Exception as exception:
            session.counters["attempt_end_failed"] += 1
            log.debug("ajet_attempt: %r", exception)


def _fork_replay(plan: Plan) -> ForkReplay | DemonstratedReplay | None:
    if plan.fork is None:
        return None
    record, calls = plan.fork.record, plan.fork.calls
    assert record, f"the fork {plan.id} has no record of its parent"
    return (
        DemonstratedReplay(record, calls) if isinstance(record, Demonstration) else ForkReplay(record, calls)
    )


def _replayed(plan: Plan, task: RecordedTask, attempt: int) -> Episode:
    record = EpisodeRecord()
    output = task.replay(record, plan.member)
    record.close()
    failed = None
    if output is None:
        failed = Failure(FailureKind.NOT_RECORDED, text=f"task {task.id} has no run {plan.member}")
    return Episode(plan, attempt, output or WorkflowOutput(), record, failed=failed)


_OF_A_PROGRAM = (
    "the client of a program must take its address and key from OPENAI_BASE_URL and OPENAI_API_KEY, from ANTHROPIC_BASE_URL "
    "and ANTHROPIC_API_KEY, or from GOOGLE_GEMINI_BASE_URL and GEMINI_API_KEY, which are set for it"
)
_IN_THIS_PROCESS = (
    "it must call its model inside the episode, with a client of OpenAI's, Anthropic's or Google's API on httpx, aiohttp, "
    "requests or urllib"
)

_BY_A_PROGRAM = "LLM calls of a program are captured only if it is given the gateway's address"


def _explain(
    session: Session, failed: Failure | None, missed: Sequence[Missed], captured: LoadedWorkflow | None
) -> Failure | None:
    """The true cause: a failure of the engine or the context appears in the workflow only as some SDK error. The calls of the
    ``captured`` workflow must be recorded."""
    if (
        session.replay
        and (failed is None or session.replay.diverged.done())
        and (error := session.replay.end())
    ):
        return Failure(FailureKind.DIVERGED, text=str(error))
    if failed and session.child_refused and failed.kind is FailureKind.TIMEOUT:
        text = (
            f"{failed.text}. An LLM call of its child process was refused, and a pool waits forever for an error that cannot be "
            f"pickled: {session.child_refused.line}"
        )
        return Failure(FailureKind.WORKFLOW, session.child_refused.code, text)
    if failed and failed.kind is FailureKind.WORKFLOW:
        if session.counters["not_recorded"]:
            return Failure(FailureKind.NOT_RECORDED, text=session.engine_error or "")
        if session.engine_error:
            return Failure(FailureKind.ENGINE, text=session.engine_error)
        if session.counters["context_overflow"]:
            return Failure(FailureKind.CONTEXT_OVERFLOW, text=failed.text)
        if session.program and captured and not captured.is_plugin and not session.record.answered:
            text = (
                f"{failed.text}. No LLM call was answered, and it started {session.program}; {_BY_A_PROGRAM}"
            )
            return replace(failed, text=text)
        if failed.is_of_program and captured and not session.record.answered:
            return replace(failed, text=f"{failed.text}. No LLM call was answered; {_OF_A_PROGRAM}")
    if failed is None and not session.record.answered and captured:
        if session.program and not captured.is_plugin:
            text = f"the workflow ended without an answered LLM call, but it started {session.program}; {_BY_A_PROGRAM}"
            return Failure(FailureKind.NOTHING_CAPTURED, "program", text)
        if left := session.abandoned:
            text = f"the workflow ended without an answered LLM call: it left {left} before the answer was complete"
            return Failure(FailureKind.NOTHING_CAPTURED, "abandoned", text)
        refused = f" ({session.refusals[0].line})" if session.refusals else ""
        text = (
            f"the workflow ended without an answered LLM call{refused}"
            + (f", but it connected to {missed[0].where}, which is not captured" if missed else "")
            + f"; {_OF_A_PROGRAM if captured.is_plugin else _IN_THIS_PROCESS}"
        )
        return Failure(FailureKind.NOTHING_CAPTURED, text=text)
    return failed
