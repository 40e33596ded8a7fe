"""The protocol between a workflow and an environment service: JSON over HTTP POST.

Each request is ``{env_type, task_id, instance_id, messages, params}``; each answer is ``{success, data}``, or
``{success: false, error}`` with a status that is not 200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ajet import AjetError

PATHS = ("/get_env_profile", "/create", "/step", "/evaluate", "/get_info", "/release")


class EnvironmentFailed(AjetError):
    """The service refused a request, failed while answering it, or cannot be reached."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of an environment after its creation and after each step."""

    messages: Sequence[Mapping[str, Any]] = ()
    """The environment's output: chat messages that the agent continues from."""
    reward: float = 0.0
    is_terminated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The state as sent over the wire."""
        return {
            "state": list(self.messages),
            "reward": self.reward,
            "is_terminated": self.is_terminated,
            "info": dict(self.info),
        }


def state_of(data: Any, where: str) -> State:
    """A state from the wire; some services send one message instead of a list. Raises EnvironmentFailed."""
    try:
        messages = data["state"]
        messages = [messages] if isinstance(messages, Mapping) else messages or []
        if not all(isinstance(m, Mapping) for m in messages):
            raise TypeError("its messages are not objects")
        return State(
            tuple(messages),
            float(data.get("reward") or 0.0),
            bool(data.get("is_terminated")),
            dict(data.get("info") or {}),
        )
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise EnvironmentFailed(f"{where}: not a state ({error}): {str(data)[:200]}") from None
