"""Tells failures of the machine, after which resuming may help, from errors that would come again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

from ray import exceptions as ray_errors

Cause = TypeVar("Cause", bound=BaseException)
LOST = (
    ray_errors.RayActorError,
    ray_errors.WorkerCrashedError,
    ray_errors.LocalRayletDiedError,
    ray_errors.NodeDiedError,
    ray_errors.ObjectLostError,
    ray_errors.OutOfMemoryError,
    ray_errors.RaySystemError,
    ray_errors.RpcError,
    ray_errors.GetTimeoutError,
)
"""Ray's errors after a node, or a process on it, has died or does not answer."""
LOST_BY_NAME = ("EngineDeadError", "DistBackendError", "DistNetworkError", "DistStoreError")
"""Errors of vLLM after its engine has died, and of torch.distributed after another rank has."""
NOT_SENT = re.compile(r"Exception (?:\w+\.)*(\w+) isn't serializable")
"""How a RayError begins that Ray sends in place of an error which it cannot pickle, such as most of its own
ActorDiedErrors; the traceback of the error follows."""
IN_INIT = "raised in its creation task"
"""Part of the text of an ActorDiedError whose cause is an exception in the actor's `__init__`."""
LONGEST = 300
"""Maximum characters of `why`."""


def is_machine_failure(error: BaseException) -> bool:
    """Whether a lost node, server or process is the cause of an error that Ray has brought from another process."""
    return any(map(_is_loss, _causes(error)))


def _is_loss(error: BaseException) -> bool:
    if isinstance(error, ray_errors.RayTaskError):
        return False  # an error of code; what raised it is among its causes
    if isinstance(error, ray_errors.RayActorError):
        return not error.actor_init_failed  # an error of code in `__init__`
    if not_sent := NOT_SENT.match(str(error)):
        names = {*LOST_BY_NAME, "ActorDiedError", "ActorUnavailableError", *(cls.__name__ for cls in LOST)}
        return not_sent[1] in names and IN_INIT not in str(error)
    return isinstance(error, LOST) or type(error).__name__ in LOST_BY_NAME


def why(error: BaseException) -> str:
    """The cause in one line: what was lost, and for an actor that has died, also which one and where; else the error without
    what Ray has wrapped around it."""
    cause = next(filter(_is_loss, _causes(error)), None) or _unwrapped(error)
    name, text = type(cause).__name__, str(cause)
    if not_sent := NOT_SENT.match(text):
        name = not_sent[1]
        text = text.rpartition(f"{name}: ")[2]
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()] or [""]
    if name.startswith("Actor"):
        useful = [line for line in lines if not line.startswith(("actor_id:", "namespace:", "pid:"))]
        return f"{name}: {', '.join(useful)}"[:LONGEST]
    return f"{name}: {lines[0]}"


def cause_of(error: BaseException, kind: type[Cause]) -> Cause | None:
    """The error of a kind, such as a broken contract of the user's code, in one that Ray has brought from another process, if
    it is one."""
    return next((cause for cause in _causes(error) if isinstance(cause, kind)), None)


def _unwrapped(error: BaseException) -> BaseException:
    return _unwrapped(error.cause) if isinstance(error, ray_errors.RayTaskError) else error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what Ray has wrapped in it, from the outside to the inside."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while isinstance(cause, BaseException) and id(cause) not in seen:
        yield cause
        seen.add(id(cause))
        cause = cause.cause if isinstance(cause, ray_errors.RayTaskError) else cause.__cause__
