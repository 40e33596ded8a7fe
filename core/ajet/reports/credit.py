"""What a run learned from its episodes, recomputed from its journal and its job."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet.interfaces.algorithm import ActorCritic, Algorithm
from ajet.interfaces.base import by_type
from ajet.interfaces.filter import Filter
from ajet.learning.batch import TokenSelection
from ajet.learning.credit import advantage_of, advantages
from ajet.plugins import P
from ajet.reports.folder import Entry, RecordedRun
from ajet.types import AjetError


@dataclass(frozen=True, slots=True)
class RunCredit:
    """The algorithm and the selection of tokens that the run's job names. If they cannot be built any more (a plugin
    is missing), ``notes`` say so and advantages are unknown."""

    algorithm: Algorithm | None
    selection: TokenSelection
    notes: Sequence[str]
    has_critic: bool = False
    """Whether advantages are those of tokens, from a critic: records of batches have rewards in their place."""

    def advantages(self, entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
        """Advantages of each judged episode of a step with a token to train, by id, as in `build_batch` if filters
        left something of each."""
        groups: dict[Hashable, list[Entry]] = {}
        for entry in entries:
            if entry.failure is None and entry.trainable and entry.group is not None:
                groups.setdefault(entry.group, []).append(entry)
        if self.algorithm is None:
            return {}
        by_group = advantages(self.algorithm, groups)
        return {e.id: a for g, members in groups.items() for e, a in zip(members, by_group[g], strict=True)}


def run_credit(run: RecordedRun) -> RunCredit:
    """The credit of a run's job."""
    train = run.job.get("train") or {}
    notes = [] if run.job else ["the folder has no job.yaml, so advantages are unknown"]
    algorithm = _built(run, Algorithm, train.get("algorithm"), "train.algorithm", notes)
    filters: list[Filter] = []
    for index, spec in enumerate(train.get("filters") or ()):
        policy = _built(run, Filter, spec, f"train.filters.{index}", notes)
        if policy is not None:
            filters.append(policy)
    has_critic = isinstance(algorithm, ActorCritic)
    if has_critic:
        algorithm = None
        notes.append("advantages are those of tokens, from a critic, and are not recorded")
    seed = str((run.job.get("run") or {}).get("seed", ""))
    return RunCredit(
        algorithm, TokenSelection(filters, train.get("max_timelines"), seed), tuple(notes), has_critic
    )


def zero_advantage(run: RecordedRun, credit: RunCredit) -> tuple[int, int]:
    """How many groups had nothing to learn, and how many were judged."""
    steps: dict[tuple[str, int], list[Entry]] = {}
    for entry in run.entries:
        if entry.group is not None:
            steps.setdefault((entry.phase, entry.step), []).append(entry)
    teaches: dict[Hashable, bool] = {}
    of_calls: dict[Hashable, Mapping[str, float]] = {}
    for entries in steps.values():
        learned = credit.advantages(entries)
        for entry in entries:
            if entry.id in learned:
                differs = of_calls.setdefault(entry.group, entry.call_rewards) != entry.call_rewards
                own = any(advantage_of(learned[entry.id], *pair) for pair in entry.trained)
                teaches[entry.group] = teaches.get(entry.group, False) or differs or own
    return sum(not something for something in teaches.values()), len(teaches)


def _built(run: RecordedRun, base: type[P], spec: Any, where: str, notes: list[str]) -> P | None:
    from ajet.job.config import Layers
    from ajet.job.parts import build_plugin

    spec = by_type(spec)
    if not isinstance(spec, Mapping):
        return None
    layers = Layers()
    layers.add(run.job, "job.yaml", run.dir)
    try:
        return build_plugin(layers, base, spec, where)
    except AjetError as error:
        notes.append(f"{where} cannot be built here, so its effect is unknown: {error}")
        return None
