"""Leased traces as episodes: the replies of one run of a task, each with its conversation before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ajet import WorkflowOutput
from ajet.chat.renderer import Chat
from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.engine import Int32
from ajet.rollout.episode import RecordedTask
from ajet.tracker.record import EpisodeRecord
from ajet_online.recall import restore
from ajet_online.settings import OnlineSettings
from ajet_online.trace import Trace


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One run of a task."""

    traces: Sequence[Trace]
    """Its replies and those before them in their conversations, parents first; only its own have ``trained``."""
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTask(RecordedTask):
    """A task with the runs that users have rated."""

    runs: Sequence[TaskRun]

    def replay(self, record: EpisodeRecord, member: int) -> WorkflowOutput | None:
        """See `RecordedTask.replay`."""
        if member >= len(self.runs):
            return None
        run = self.runs[member]
        calls = restore(record, run.traces, 0, {})
        return WorkflowOutput(run.reward, calls[-1].trace.answer.get("content"))


@dataclass(frozen=True, slots=True)
class Usable:
    """Which traces can be trained, and as what."""

    tasks: Sequence[LeasedTask]
    unusable: Mapping[str, str]
    """Id of a trace -> why it cannot be trained."""

    @property
    def runs(self) -> list[TaskRun]:
        return [run for task in self.tasks for run in task.runs]


def compares_runs(algorithm: Algorithm) -> bool:
    """Whether a run whose task has no other one teaches nothing."""
    return not any(algorithm.advantages(np.array([reward])).any() for reward in (0.0, 1.0, 2.0))


def learns_rewards(algorithm: Algorithm) -> bool:
    """Whether replies without a reward teach nothing."""
    return algorithm.name not in ("sft", "distillation")


def ratings_needed(algorithm: Algorithm, settings: OnlineSettings) -> int:
    """How many ratings the served version gets before the next update."""
    return settings.rollback.ratings if settings.rollback.enabled and learns_rewards(algorithm) else 0


def usable(
    leased: Sequence[Trace],
    conversation: Callable[[str], Sequence[Trace]],
    problem: Callable[[Trace], str | None],
    *,
    target: str,
    split: bool,
    context: int,
) -> Usable:
    """The episodes of leased traces; ``problem`` says why one cannot be trained, and ``conversation`` gives all of its traces.
    ``context`` is how many tokens a reply may have with the conversation before it.

    An episode has the replies to one key with the same task, run and reward. With ``split`` each is a task of its own; otherwise
    those of one task are its members.
    """
    unusable = {trace.id: said for trace in leased if (said := problem(trace))}
    names = dict.fromkeys(trace.conversation for trace in leased if trace.parent and trace.id not in unusable)
    stored = {trace.id: trace for name in names for trace in conversation(name)}
    for trace in leased:
        if trace.id not in unusable and sum(map(_tokens, _back(trace, stored))) > context:
            unusable[trace.id] = too_long(context)
    runs: dict[tuple[str, str, str, float], list[Trace]] = {}
    for trace in leased:
        if trace.id not in unusable:
            one = (trace.key, trace.task_id or "", trace.run_id or "", trace.reward or 0.0)
            runs.setdefault(one, []).append(trace)
    tasks: dict[tuple[str, ...], list[TaskRun]] = {}
    for (key, task, name, reward), own in runs.items():
        run = TaskRun(tuple(_whole(own, stored, target)), reward)
        tasks.setdefault((key, task, name, str(reward)) if split else (key, task), []).append(run)
    return Usable(
        [LeasedTask(id="/".join(one), runs=tuple(theirs)) for one, theirs in tasks.items()], unusable
    )


def too_long(context: int) -> str:
    """Why a reply cannot be trained that does not fit the model's context."""
    return f"it is longer, with the conversation before it, than the model's context of {context} tokens"


def _back(trace: Trace, known: Mapping[str, Trace]) -> Iterator[Trace]:
    """A reply, and those before it, of which the nearest comes first."""
    yield trace
    while trace.parent is not None:
        trace = known[trace.parent]
        yield trace


def _tokens(trace: Trace) -> int:
    return len(trace.prompt) + len(trace.tokens)


def _whole(own: Sequence[Trace], stored: Mapping[str, Trace], target: str) -> Iterator[Trace]:
    """The replies with all replies before them, of which nothing is learned."""
    learned = {trace.id: trace for trace in own}
    known = {**stored, **learned}
    whole: dict[str, Trace] = {}
    for trace in own:
        whole |= {one.id: one for one in reversed(list(_back(trace, known)))}
    for one in whole.values():
        yield replace(one, target=target, trained=one.trained and one.id in learned)


def corrected(trace: Trace, chat: Chat) -> Trace:
    """A reply with the tokens of its correction, which no model has sampled: their logprobs are NaN. Texts of special tokens in it
    are plain text, so that no user ends turns or calls tools."""
    answer = {"role": "assistant", "content": trace.correction}
    tokens: Int32 = np.array([*chat.written_ids(trace.correction or ""), chat.stop_token_ids[0]], np.int32)
    return replace(
        trace,
        tokens=tokens,
        logprobs=np.full(len(tokens), np.nan, np.float32),
        versions=np.full(len(tokens), trace.versions[0] if len(trace.versions) else 0, np.int32),
        answer=answer,
        trained=True,
        finish_reason="stop",
    )
