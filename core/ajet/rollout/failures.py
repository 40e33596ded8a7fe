"""The failure of an episode whose workflow or judge raised: the cause, and the user's line."""

from __future__ import annotations

from ajet.interfaces.workflow import WorkflowFailed, place_of
from ajet.types import WorkflowOutput


def describe_exception(exception: BaseException) -> str:
    """``ValueError: text (agent.py:17)``: with the innermost line of the user's own code."""
    place = place_of(exception)
    return f"{type(exception).__name__}: {str(exception)[:500]}{f' ({place})' if place else ''}"


def judge_failure(judge: str, output: WorkflowOutput, error: Exception) -> tuple[str, str]:
    """(cause, message) of an episode whose judge raised. The workflow is the cause if it returned None and the
    judge could not handle None."""
    if isinstance(error, WorkflowFailed):
        return f"workflow:{error.cause}", str(error)
    message = f"judge {judge}: {describe_exception(error)}"
    if not _returned_none(output):
        return f"judge:{type(error).__name__}", message
    if "None" in str(error):  # as in "'NoneType' object has no attribute 'strip'"
        return (
            "workflow:returned_none",
            f"the workflow returned None, which the judge cannot score: {message}",
        )
    return f"judge:{type(error).__name__}", f"{message}; the workflow returned None"


def _returned_none(output: WorkflowOutput) -> bool:
    """Whether the workflow returned None, or a WorkflowOutput without content. An environment adds its score."""
    nothing = output.response is None and output.reward is None
    return nothing and not (output.metadata.keys() - {"score"})
