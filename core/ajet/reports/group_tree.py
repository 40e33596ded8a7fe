"""The tree of an episode's group, which explains what a training step learned from it.

Its episodes are the leaves, with their rewards. Where forks leave an episode, the value is the mean reward of the leaves below. Each
call has the advantage with which it was trained.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from ajet.chat.messages import text_of
from ajet.learning.fork_tree import ForkTree, OwnCall
from ajet.reports.credit import RunCredit
from ajet.reports.folder import Entry, RecordedRun
from ajet.rollout.batch_record import trained_advantages
from ajet.rollout.episode import Episode, Fork
from ajet.tracker.call import Call

LONGEST_WORDS = 50
"""Characters of an answer that are shown."""
KEPT = 32
"""Groups whose trees are kept: the episodes of a group end near each other."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """An episode of the group. A `ajet.learning.fork_tree.Leaf`."""

    id: str
    reward: float | None
    """None if it failed."""
    failure: str | None
    fork: Fork | None
    calls: Sequence[int]
    said: Mapping[int, tuple[str, str]]
    """The agent and the first words of each call's answer."""

    @classmethod
    def of(cls, episode: Episode, reward: float | None, failure: str | None) -> GroupMember:
        """A decoded episode; ``reward`` and ``failure`` are those of the journal."""
        calls = episode.record.calls
        said = {call.number: (call.agent, _words(call)) for call in calls}
        judged = None if failure else reward
        return cls(episode.id, judged, failure, episode.plan.fork, [c.number for c in calls], said)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Calls of one agent that follow each other and have the same advantage."""

    calls: tuple[int, ...]
    agent: str
    words: str
    """The beginning of the first one's answer and of the last one's."""
    advantage: float | None
    """None if it was not trained, or if there is no record of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """The calls from one fork to the next, or to the end of an episode."""

    parent: int
    """The place of the node before; -1 at the task."""
    stretches: tuple[Stretch, ...]
    value: float | None
    """The mean reward of the judged episodes below."""
    leaves: int
    """How many episodes are below."""
    episode: str | None
    """The id of the episode that ends here; None at a fork."""
    failure: str | None
    is_fork: bool


@dataclass(frozen=True, slots=True)
class GroupTree:
    """A group, depth first."""

    value: float | None
    leaves: int
    nodes: tuple[GroupNode, ...]
    is_recorded: bool
    """Whether the advantages of the step are known."""

    @property
    def has_forks(self) -> bool:
        return any(node.is_fork for node in self.nodes)


class GroupTrees:
    """The trees of a run's groups, each made once while its episodes are shown."""

    def __init__(self, run: RecordedRun, credit: RunCredit) -> None:
        self._run, self._has_critic = run, credit.has_critic
        self._made: OrderedDict[Hashable, GroupTree] = OrderedDict()
        self._trained: tuple[int, Mapping[OwnCall, float] | None] = (-1, None)
        """The advantages of the step that was asked for last."""

    def trained(self, entry: Entry) -> Mapping[OwnCall, float] | None:
        """The advantages of the calls of an episode's step, as they were trained; None if there is no record of them."""
        if entry.phase != "train" or self._has_critic:
            return None
        if self._trained[0] != entry.step:
            self._trained = entry.step, trained_advantages(self._run.dir, entry.step)
        return self._trained[1]

    def of(self, entry: Entry) -> GroupTree | None:
        """The tree of an episode's group; None if it has none, or no other member. Raises AjetError if the journal has changed."""
        members = self._run.members(entry) if entry.group is not None else []
        if len(members) < 2:
            return None
        if entry.group not in self._made:
            leaves = [GroupMember.of(self._run.episode(e), e.reward, e.failure) for e in members]
            self._made[entry.group] = grown(leaves, self.trained(entry))
            if len(self._made) > KEPT:
                self._made.popitem(last=False)
        return self._made[entry.group]


def grown(members: Sequence[GroupMember], advantages: Mapping[OwnCall, float] | None) -> GroupTree:
    """The tree of a group with the advantages of calls that were trained; None if these are unknown."""
    tree = ForkTree(members)
    paths = [tree.path(place) for place in range(len(members))]
    by_id = {member.id: member for member in members}
    nodes: list[GroupNode] = []

    def grow(parent: int, below: Sequence[int], start: int) -> None:
        """Add the nodes of the episodes ``below``, whose paths are the same up to a place."""
        branches: dict[Hashable, list[int]] = {}
        for leaf in below:
            key = paths[leaf][start] if len(paths[leaf]) > start else members[leaf].id
            branches.setdefault(key, []).append(leaf)
        for leaves in branches.values():
            first, end = paths[leaves[0]], start
            while all(end < len(paths[leaf]) and paths[leaf][end] == first[end] for leaf in leaves):
                end += 1
            only = members[leaves[0]] if len(leaves) == 1 else None
            nodes.append(
                GroupNode(
                    parent=parent,
                    stretches=_stretches(first[start:end], by_id, advantages or {}),
                    value=_value([members[leaf] for leaf in leaves]),
                    leaves=len(leaves),
                    episode=only.id if only else None,
                    failure=only.failure if only else None,
                    is_fork=bool(only and only.fork),
                )
            )
            if only is None:
                grow(len(nodes) - 1, leaves, end)

    grow(-1, range(len(members)), 0)
    return GroupTree(_value(members), len(members), tuple(nodes), advantages is not None)


def _stretches(
    calls: Sequence[OwnCall], by_id: Mapping[str, GroupMember], advantages: Mapping[OwnCall, float]
) -> tuple[Stretch, ...]:
    def said(call: OwnCall) -> tuple[str, str]:
        episode, number = call
        return by_id[episode].said.get(number, ("", "")) if episode in by_id else ("", "")

    stretches = []
    # Known only by their places on another group's path.
    if earlier := [call for call in calls if call[1] < 0]:
        numbers = tuple(-1 - place for _, place in earlier)
        stretches.append(Stretch(numbers, "", f"replayed from {earlier[0][0]}", None))
        calls = calls[len(earlier) :]
    for (agent, advantage), some in groupby(calls, lambda call: (said(call)[0], advantages.get(call))):
        own = list(some)
        words = " … ".join(dict.fromkeys(filter(None, (said(call)[1] for call in (own[0], own[-1])))))
        stretches.append(Stretch(tuple(number for _, number in own), agent, words, advantage))
    return tuple(stretches)


def _value(members: Sequence[GroupMember]) -> float | None:
    rewards = [member.reward for member in members if member.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _words(call: Call) -> str:
    """The beginning of a call's answer, in one line; without text, its tool calls."""
    said = call.said or ""
    if call.answer is not None:
        message = call.answer.message
        tools = [one["function"] for one in message.get("tool_calls") or ()]
        said = text_of(message) or "  ".join(f"→ {f['name']}({f.get('arguments') or ''})" for f in tools)
    words = " ".join(said[: 4 * LONGEST_WORDS].split())
    return words if len(words) <= LONGEST_WORDS else f"{words[: LONGEST_WORDS - 1]}…"
