"""The credit of a step's tokens with the recorded rewards and with the new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ajet.learning.batch import Learnable, Learning, batch_of
from ajet.learning.settings import TrainSettings
from ajet.reports.credit import RunCredit
from ajet.reports.folder import RecordedRun
from ajet.rollout.batch_record import trained_advantages
from ajet_rejudge.judging import Judged

NEARLY_ZERO = 1e-6
"""Advantages below this are 0: they come from rounding."""
CLOSE = 1e-3
"""How far an advantage may be from the recorded one, relatively."""

Sampled = tuple[str, int]
"""A call: the episode that sampled it, and its number there."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a call's tokens get."""

    advantage: float
    weight: float
    """The sum over its tokens."""
    tokens: int

    @property
    def sign(self) -> int:
        """1, 0 or -1."""
        return 0 if abs(self.advantage) < NEARLY_ZERO else int(math.copysign(1, self.advantage))


@dataclass(frozen=True, slots=True)
class StepCredit:
    """What becomes of the trained tokens of a step. Only groups whose verdicts are all known are compared."""

    tokens: int
    """Tokens that were trained: with an advantage other than 0."""
    wrong: int
    """Those among them whose advantage has another sign now, or is 0."""
    turned: int
    """Those among these whose sign is the opposite one."""
    missed: int
    """Tokens without an advantage that have one now."""
    push: Mapping[str, tuple[float, float]]
    """The sum of weight times advantage over the tokens of each episode, as recorded and now."""
    as_recorded: bool
    """Whether the advantages of the recorded rewards are those that the step's record has. True without a record."""

    @property
    def share(self) -> float:
        """The share of trained tokens whose advantage had the wrong sign."""
        return self.wrong / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Crediting:
    """How the job of a run gives credit."""

    run: RecordedRun
    credit: RunCredit
    learning: Learning
    settings: TrainSettings
    seed: int

    def of(self, step: Sequence[Judged]) -> StepCredit | None:
        """The credit of a training step; None if nothing of it can be trained."""
        was: list[Learnable] = []
        now: list[Learnable] = []
        unknown = {each.episode.plan.group for each in step if each.unknown}
        for each in sorted(step, key=lambda e: (e.episode.plan.group, e.entry.member)):
            if not each.has_output:
                continue
            base = self.credit.selection.learnable(replace(each.episode, failed=None))
            if base is None:
                continue
            verdicts = each.recorded, each.recorded if base.group in unknown else each.new
            for side, verdict in zip((was, now), verdicts, strict=True):
                if verdict is not None:
                    side.append(
                        replace(
                            base,
                            reward=verdict.reward,
                            rewards=verdict.rewards,
                            call_rewards=verdict.call_rewards,
                        )
                    )
        number = step[0].entry.step
        before, after = (self._shares(learnables, number) for learnables in (was, now))
        if not before:
            return None
        left_out = {episode.id for episode in was if episode.group in unknown}
        pairs = [
            (one, after.get(call, Share(0.0, 0.0, one.tokens)))
            for call, one in before.items()
            if call[0] not in left_out
        ]
        trained = [(one, other) for one, other in pairs if one.sign]
        untrained = [
            after[call]
            for call in after
            if call[0] not in left_out and (call not in before or not before[call].sign)
        ]
        return StepCredit(
            tokens=sum(one.tokens for one, _ in trained),
            wrong=sum(one.tokens for one, other in trained if other.sign != one.sign),
            turned=sum(one.tokens for one, other in trained if other.sign == -one.sign),
            missed=sum(other.tokens for other in untrained if other.sign),
            push={name: (one, other) for name, one, other in _pushes(before, after) if name not in left_out},
            as_recorded=self._as_recorded(before, number),
        )

    def _shares(self, episodes: Sequence[Learnable], step: int) -> dict[Sampled, Share]:
        """What each call of a batch of these episodes gets."""
        made = batch_of(
            episodes,
            self.learning,
            mini_batches=self.settings.mini_batches,
            learning_rate=0.0,
            seed=f"{self.seed}:{step}",
        )
        shares: dict[Sampled, Share] = {}
        for sample in made.batch.samples if made else ():
            for span in sample.spans:
                if span.end > span.start:
                    own = shares.get((sample.episode, span.call), Share(0.0, 0.0, 0))
                    shares[sample.episode, span.call] = Share(
                        float(sample.advantages[span.start]),
                        own.weight + float(sample.weights[span.start : span.end].sum()),
                        own.tokens + span.end - span.start,
                    )
        return shares

    def _as_recorded(self, shares: Mapping[Sampled, Share], step: int) -> bool:
        recorded = trained_advantages(self.run.dir, step)
        if recorded is None:
            return True
        return recorded.keys() == shares.keys() and all(
            math.isclose(value, shares[call].advantage, rel_tol=CLOSE, abs_tol=NEARLY_ZERO)
            for call, value in recorded.items()
        )


def _pushes(
    before: Mapping[Sampled, Share], after: Mapping[Sampled, Share]
) -> list[tuple[str, float, float]]:
    pushes: dict[str, list[float]] = {}
    for place, shares in enumerate((before, after)):
        for (episode, _), share in shares.items():
            pushes.setdefault(episode, [0.0, 0.0])[place] += share.weight * share.advantage
    return [(name, one, other) for name, (one, other) in pushes.items()]


def crediting(
    run: RecordedRun, credit: RunCredit, settings: TrainSettings, seed: int, adapters: Sequence[str]
) -> Crediting | str:
    """How a run's job gives credit, or why that is not known."""
    algorithm = credit.algorithm
    if algorithm is None:
        return "; ".join(credit.notes)
    if "teacher" in algorithm.needs:
        return f"advantages of {algorithm.name} do not come from rewards"
    return Crediting(run, credit, Learning.of(algorithm, settings, adapters), settings, seed)
