"""Targets: named sets of agents that share weights, trained or answered by a frozen model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ajet.capture.replies import Replies
from ajet.capture.wires import Answer, Refused
from ajet.interfaces.engine import ChatModel


@dataclass(frozen=True, slots=True)
class Target:
    """A named set of agents; ``model`` None means that our engine answers them."""

    name: str
    agents: tuple[str, ...] = ("*",)
    """Shell-style name patterns of its agents."""
    model: ChatModel | None = None
    trained: bool = True
    adapter: str | None = None
    """Name of the adapter that our engine uses; None: the base weights."""
    replies: Mapping[str, Replies[Answer | Refused]] | None = None
    """The recorded replies of each episode, by its id, that answer in place of any model."""


def choose_target(targets: Sequence[Target], agent: str, asked: str | None) -> Target:
    """The target that a label asked for, else the first whose patterns match the agent. Raises Refused."""
    for target in targets:
        if asked == target.name or (
            asked is None and any(fnmatchcase(agent, pattern) for pattern in target.agents)
        ):
            return target
    what = f"target {asked!r}" if asked else f"agent {agent!r}"
    raise Refused(
        f"{what} belongs to no target of this job ({', '.join(t.name for t in targets)}); name it in `targets.<name>.agents`",
        code="unknown_target",
    )
