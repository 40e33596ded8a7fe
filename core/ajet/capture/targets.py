"""Targets: named sets of agents that share weights, trained or answered by a frozen model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ajet.capture.replies import Replies
from ajet.interfaces.engine import ChatModel
from ajet.interfaces.wire import Answer, Refused, brief


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
    models: tuple[str, ...] = ()
    """Patterns of the names by which requests call their model; none: any name."""
    side: bool = False
    """Whether its calls are side calls, which batches leave out."""

    @property
    def by_engine(self) -> bool:
        """Whether our engine answers its calls."""
        return not self.model and self.replies is None

    def takes(self, agent: str, model: str) -> bool:
        """Whether it takes the calls of an agent that call their model so."""
        named = not self.models or any(fnmatchcase(model, pattern) for pattern in self.models)
        return named and any(fnmatchcase(agent, pattern) for pattern in self.agents)


def choose_target(targets: Sequence[Target], agent: str, asked: str | None, model: str) -> Target:
    """The target that a label asked for, else the first that takes calls of the agent and of the name by which the request
    calls its ``model``; those with patterns for such names come before the others. Raises Refused."""
    for target in sorted(targets, key=lambda target: not target.models):
        if target.name == asked if asked else target.takes(agent, model):
            return target
    what = f"target {asked!r}" if asked else f"agent {agent!r}, which calls its model {brief(model)},"
    raise Refused(
        f"{what} belongs to no target of this job ({', '.join(t.name for t in targets)}); name it in `targets.<name>.agents`",
        code="unknown_target",
    )
