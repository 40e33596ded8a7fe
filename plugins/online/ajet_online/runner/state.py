"""Copies of agents, which have a state of their own and share everything else with the user's agent."""

from __future__ import annotations

import copy
from typing import Any


def state_of(agent: Any, *kinds: type) -> dict[str, Any]:
    """Copies of those attributes of an agent that are of these classes."""
    return {name: copy.deepcopy(value) for name, value in vars(agent).items() if isinstance(value, kinds)}


def with_state(agent: Any, state: dict[str, Any]) -> Any:
    """A shallow copy of the agent, which has a deep copy of this state."""
    twin = copy.copy(agent)
    # Not by `setattr`: a class may note attributes in an object that both would share.
    vars(twin).update(copy.deepcopy(state))
    return twin
