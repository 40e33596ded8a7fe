"""Why an episode failed: a kind, the name of the error, and what is said about it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from traceback import walk_tb

from ajet.interfaces.judge import FunctionJudge, Judge
from ajet.interfaces.workflow import WorkflowFailed, location_of, missing_key
from ajet.types import Task, WorkflowOutput
from ajet.utils.user_code import written_at


class FailureKind(StrEnum):
    """What failed."""

    TIMEOUT = "timeout"
    WORKFLOW = "workflow"
    JUDGE = "judge"
    ENGINE = "engine"
    CONTEXT_OVERFLOW = "context_overflow"
    NOTHING_CAPTURED = "nothing_captured"
    RUNNER_DIED = "runner_died"
    NOT_RECORDED = "not_recorded"
    DIVERGED = "diverged"


_FIX_THE_PROGRAM = (
    "Fix the program; the error shows the end of what it printed, and `ajet docs gateway` what it is given."
)
LEFT = "Read each stream to its end, and await each call: an answer that is not taken whole is not recorded."
_REMEDIES = {
    FailureKind.WORKFLOW: "Fix the agent; what the model did wrong, such as invalid SQL, a tool returns to it: failed episodes are not "
    "trained. `--backbone debug` stops at breakpoints in it.",
    FailureKind.TIMEOUT: "Raise rollout.timeout, find what the agent waits for, or limit its turns if it makes many calls.",
    FailureKind.NOTHING_CAPTURED: "Let the agent call its model inside the episode, with a client that is captured.",
    FailureKind.CONTEXT_OVERFLOW: "Shorten the agent's histories, or use a model with a longer context.",
    FailureKind.ENGINE: "The model could not be asked; the error says why.",
    FailureKind.NOT_RECORDED: "Undo what changed the agent's requests, or record the episode again.",
    FailureKind.DIVERGED: "Let the agent do the same again after the same answers: seed what is random, keep clocks out of prompts.",
    FailureKind.RUNNER_DIED: "Fix the agent; `--backbone debug` stops at breakpoints in it.",
    FailureKind.JUDGE: "Fix the judge, or what it is given: the error says what is wrong and, in your own code, where.",
}
_REMEDIES_BY_CAUSE = {
    "nothing_captured:program": "Make the program the workflow (`workflow: cmd:COMMAND`), or start it with "
    "env={**os.environ, **tuner.as_base_url().environment()}; see `ajet docs gateway`.",
    "nothing_captured:abandoned": LEFT,
    "workflow:calls": "Raise workflow.calls, or train such episodes, too: workflow.failed: judge.",
    "workflow:tokens": "Raise workflow.tokens, or train such episodes, too: workflow.failed: judge.",
    "workflow:timeout": "Raise workflow.timeout, or train such episodes, too: workflow.failed: judge.",
    "workflow:no_gateway": "Set rollout.gateway: true, so that forked children are answered.",
    "workflow:returned_coroutine": "Await it.",
    "workflow:returned_none": "Return the answer from the workflow.",
    "workflow:no_reward": "Name a judge (`judge`, --judge), or return WorkflowOutput(reward=…) from the workflow.",
}
_INSTEAD = {"trinity": "its reward functions are in ajet_agentscope.trinity_compat, too"}
"""Modules of other projects, and what AgentJet has in their place."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of an episode."""

    kind: FailureKind
    name: str = ""
    """Of an exception's class, or a cause that has a name of its own; empty if the kind says all."""
    text: str = ""
    """What happened, in words."""

    @classmethod
    def parse(cls, cause: str, text: str) -> Failure:
        """The failure that a journal holds as its `cause` and its text."""
        kind, _, name = cause.partition(":")
        return cls(FailureKind(kind), name, text)

    @property
    def cause(self) -> str:
        """``timeout``, ``workflow:KeyError``: failures of one cause are counted together."""
        return f"{self.kind}:{self.name}" if self.name else self.kind.value

    @property
    def repeats(self) -> bool:
        """Whether another attempt would fail in the same way."""
        return self.kind in (
            FailureKind.CONTEXT_OVERFLOW,
            FailureKind.NOTHING_CAPTURED,
            FailureKind.NOT_RECORDED,
            FailureKind.DIVERGED,
        )

    @property
    def is_of_program(self) -> bool:
        """Whether a program ended with an exit code or by a signal."""
        return self.kind is FailureKind.WORKFLOW and self.name.startswith(("exit ", "signal "))

    @property
    def remedy(self) -> str:
        """What the user can do about it."""
        of_kind = _FIX_THE_PROGRAM if self.is_of_program else _REMEDIES[self.kind]
        return _REMEDIES_BY_CAUSE.get(self.cause, of_kind)


def workflow_failure(error: BaseException) -> Failure:
    """The failure of an episode whose workflow raised."""
    if isinstance(error, WorkflowFailed):
        return Failure(FailureKind.WORKFLOW, error.cause, str(error))
    said = ". ".join(filter(None, (describe_exception(error), missing_key(error))))
    return Failure(FailureKind.WORKFLOW, type(error).__name__, said)


def judge_failure(judge: Judge, output: WorkflowOutput, error: Exception) -> Failure:
    """The failure of an episode whose judge raised. The workflow is the cause if it returned None and the judge could not
    handle None."""
    if isinstance(error, WorkflowFailed):
        return workflow_failure(error)
    said, (name, at) = describe_exception(error), _name_and_line(judge)
    text = f"judge {name}: {said}{f' ({at})' if at and at not in said and not location_of(error) else ''}"
    if _returned_none(output):
        if "None" in str(error):  # as in "'NoneType' object has no attribute 'strip'"
            text = f"the workflow returned None, which the judge cannot score: {text}"
            return Failure(FailureKind.WORKFLOW, "returned_none", text)
        text = f"{text}; the workflow returned None"
    return Failure(FailureKind.JUDGE, type(error).__name__, text)


def _name_and_line(judge: Judge) -> tuple[str, str]:
    """Of a judge, or of its function; the line is empty for an installed one."""
    if isinstance(judge, FunctionJudge):
        function = judge.function
        return getattr(function, "__qualname__", type(function).__qualname__), written_at(function)
    return judge.name, written_at(getattr(type(judge), "score_group", type(judge).judge))


def describe_exception(exception: BaseException) -> str:
    """``ValueError: text (agent.py:17)``: with the innermost line of the user's own code, and for a missing module with what
    AgentJet has in its place."""
    location = location_of(exception)
    missing = exception.name if isinstance(exception, ModuleNotFoundError) else None
    instead = _INSTEAD.get((missing or "").partition(".")[0]) or _missing_field(exception)
    said = f"{type(exception).__name__}: {str(exception)[:500]}{f' ({location})' if location else ''}"
    return f"{said}; {instead}" if instead else said


def _missing_field(exception: BaseException) -> str:
    """What a task or an output has, if the user's code asked it for something else; else empty."""
    asked: object = exception.obj if isinstance(exception, AttributeError) else None
    if isinstance(exception, TypeError) and exception.__traceback__:
        kind = next((k for k in (Task, WorkflowOutput) if f"'{k.__name__}'" in str(exception)), None)
        (*_, (frame, _)) = walk_tb(exception.__traceback__)
        asked = next((v for v in frame.f_locals.values() if kind and isinstance(v, kind)), None)
    if isinstance(exception, KeyError) and exception.__traceback__:
        (*_, (frame, _)) = walk_tb(exception.__traceback__)
        local = frame.f_locals.values() if "metadata" in frame.f_code.co_names else ()
        tasks = (t for t in local if isinstance(t, Task) and str(exception) not in map(repr, t.metadata))
        asked = next(tasks, None)
    if not isinstance(asked, (Task, WorkflowOutput)):
        return ""
    names = ", ".join(field.name for field in fields(asked))
    return f"{type(asked).__name__} has {names}; its metadata has {', '.join(asked.metadata) or 'nothing'}"


def _returned_none(output: WorkflowOutput) -> bool:
    """Whether the workflow returned None, or a WorkflowOutput without content. An environment adds its score."""
    nothing = output.response is None and output.reward is None
    return nothing and not (output.metadata.keys() - {"score"})
