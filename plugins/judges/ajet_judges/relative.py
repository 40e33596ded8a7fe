"""Judges that compare the responses of a group by a model: `listwise` and `pairwise`."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from ajet import EndpointUsage, EpisodeView, GroupJudge, JudgeOutput, Task
from ajet_judges.endpoint import GradingJudge
from ajet_judges.llm import REFERENCE, graded
from ajet_judges.questions import Question, Verdict
from ajet_judges.rubric import read_rubric
from ajet_judges.text import response_text

LISTWISE = """You compare responses to one task. A good response is one of which this holds:

{criteria}

Give each response a score from 0 to {scale}, so that a better one has a higher score and equally good ones have the
same. Their order means nothing.{reference}"""
PAIRWISE = """You compare two responses to one task. The better one is that of which more of this holds:

{criteria}

Say which is better: "first", "second", or "equal" if neither is. Their order means nothing.{reference}"""


class Better(Verdict):
    """Which of two responses is better."""

    better: Literal["first", "second", "equal"]


class RelativeJudge(GradingJudge, GroupJudge):
    """Base of judges that compare responses. Equal texts get equal rewards; an empty one gets 0 without a request."""

    criteria: str = Field(
        "The response answers the task correctly and completely.",
        description="What makes a response good.",
        min_length=1,
    )
    rubric: Path | None = Field(None, description="YAML file of a rubric whose criteria replace `criteria`.")

    def model_post_init(self, context: Any) -> None:
        """Read the rubric now, so that a broken one does not fail in the middle of a run."""
        super().model_post_init(context)
        if self.rubric is not None:
            read_rubric(self.rubric)

    async def score_group(
        self, task: Task, episodes: Sequence[EpisodeView]
    ) -> list[JudgeOutput | Exception | None]:
        """See `GroupJudge.score_group`. The cost is divided among the members that did not fail."""
        responses = [response_text(e.output) if e.failure is None else "" for e in episodes]
        rewards, usage = await self.compare(task, _in_order({r for r in responses if r.strip()}))
        metrics = usage.metrics(sum(e.failure is None for e in episodes) or 1)
        return [
            None if e.failure else JudgeOutput(rewards.get(r, 0.0), metrics=metrics)
            for e, r in zip(episodes, responses, strict=True)
        ]

    async def compare(
        self, task: Task, responses: Sequence[str]
    ) -> tuple[Mapping[str, float], EndpointUsage]:
        """The reward of each of these distinct texts, and the usage."""
        raise NotImplementedError

    def wanted(self) -> str:
        """What makes a response good, as text."""
        if self.rubric is None:
            return self.criteria
        rubric = read_rubric(self.rubric)
        parts = [f"- {c.text} (counts {c.weight:g})" for c in rubric.criteria]
        return "\n".join([*([rubric.about] if rubric.about else []), *parts])


class Listwise(RelativeJudge):
    """A model scores all responses of a group in one question."""

    name = "listwise"

    scale: int = Field(10, ge=1, le=100, description="The best score; the model returns whole numbers.")

    async def compare(
        self, task: Task, responses: Sequence[str]
    ) -> tuple[Mapping[str, float], EndpointUsage]:
        if not responses:
            return {}, EndpointUsage()
        about = self.about(task)
        reference = REFERENCE if "REFERENCE" in about else ""
        instructions = LISTWISE.format(criteria=self.wanted(), scale=self.scale, reference=reference)
        names = [f"RESPONSE_{i}" for i in range(1, len(responses) + 1)]
        data = about | dict(zip(names, responses, strict=True))
        verdict, usage = await self.ask(Question(instructions, data, graded(self.scale, *names)))
        scores = [getattr(verdict, name) / self.scale for name in names]
        return dict(zip(responses, scores, strict=True)), usage


class Pairwise(RelativeJudge):
    """A tournament of a group's responses: a reward is the share of comparisons won; a tie counts half.

    Each pair is shown in both orders; a response wins only if it wins in both. A response without an opponent gets 0.5.
    """

    name = "pairwise"

    rounds: int | None = Field(
        None,
        ge=1,
        description="Opponents of each response; default: all others. A group of n costs n · rounds questions.",
    )
    opponent: str | None = Field(
        None,
        description="Key of the task's metadata with a text that also competes, so that a single episode (validation) has an opponent.",
    )

    async def compare(
        self, task: Task, responses: Sequence[str]
    ) -> tuple[Mapping[str, float], EndpointUsage]:
        players = list(responses)
        opponent = task.metadata.get(self.opponent) if self.opponent else None
        if opponent is not None and str(opponent) not in players:
            players.append(str(opponent))
        pairs = schedule(len(players), self.rounds)
        points = await asyncio.gather(*(self._play(task, players[a], players[b]) for a, b in pairs))
        won = {r: [0.0, 0] for r in players}
        usage = EndpointUsage()
        for (a, b), (point, used) in zip(pairs, points, strict=True):
            usage += used
            for player, share in ((players[a], point), (players[b], 1 - point)):
                won[player][0] += share
                won[player][1] += 1
        return {r: total / games if games else 0.5 for r, (total, games) in won.items()}, usage

    async def _play(self, task: Task, one: str, other: str) -> tuple[float, EndpointUsage]:
        """1 if ``one`` is better in both orders, 0 if ``other`` is, else 0.5; and the usage."""
        about = self.about(task)
        reference = REFERENCE if "REFERENCE" in about else ""
        instructions = PAIRWISE.format(criteria=self.wanted(), reference=reference)
        (first, used), (second, more) = await asyncio.gather(
            *(
                self.ask(Question(instructions, {**about, "FIRST": a, "SECOND": b}, Better))
                for a, b in ((one, other), (other, one))
            )
        )
        outcome = (first.better, second.better)
        point = {("first", "second"): 1.0, ("second", "first"): 0.0}.get(outcome, 0.5)
        return point, used + more


def schedule(players: int, rounds: int | None) -> list[tuple[int, int]]:
    """Pairs of players, by index: all pairs, or those of ``rounds`` rounds of a round-robin tournament by the circle
    method. If the number of players is odd, one player pauses in each round."""
    if rounds is None or rounds >= players - 1:
        return list(itertools.combinations(range(players), 2))
    circle: list[int | None] = [*range(players), *([None] if players % 2 else [])]
    pairs = []
    for _ in range(rounds):
        half = len(circle) // 2
        for a, b in zip(circle[:half], reversed(circle[half:]), strict=True):
            if a is not None and b is not None:
                pairs.append((a, b))
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return pairs


def _in_order(responses: set[str]) -> list[str]:
    """An order that depends only on the responses, not on which episode gave which."""
    return sorted(responses, key=lambda r: hashlib.sha256(r.encode("utf-8", "replace")).digest())
