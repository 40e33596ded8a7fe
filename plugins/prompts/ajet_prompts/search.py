"""GEPA's search: reflective mutation of texts, and a Pareto front over the validation tasks (arXiv:2507.19457).

The library ``gepa`` proposes and selects candidates. It is deterministic: given equal rewards and equal replies it repeats
itself, so a search goes on after a kill by starting again with what the run folder holds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet import Task
from ajet_prompts.budget import SearchEnded
from ajet_prompts.candidates import RanEpisode, Texts

log = logging.getLogger("ajet")
_IDLE = 50
"""Iterations in a row in which no text was proposed, because all episodes were perfect."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Texts that improved on those that they were made of."""

    number: int
    """In the order of their evaluation on all validation tasks; 0 is the first one."""
    parent: int | None
    texts: Texts
    reward: float
    """Mean over the validation tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What GEPA needs. The functions are called in the thread of `run`."""

    train: Sequence[Task]
    validation: Sequence[Task]
    evaluate: Callable[[Texts, Sequence[Task]], Sequence[Sequence[RanEpisode]]]
    """The episodes of a candidate, for each task."""
    reflect: Callable[[str], str]
    """The reply of the reflection model."""
    found: Callable[[Candidate], None]
    examples: int
    """Tasks that a proposal is made from."""
    rewards: tuple[float, float]
    """The lowest and the highest of an episode."""
    seed: int

    def run(self, first: Texts) -> str:
        """Search until something raises SearchEnded; returns why it did."""
        from gepa.api import optimize

        calls = _CountedModel(self.reflect)
        adapter: Any = _Adapter(self.evaluate, self.rewards)
        listener: Any = _Listener(self.found)  # it has one of the many methods
        try:
            optimize(
                seed_candidate=dict(first),
                trainset=list(self.train),
                valset=list(self.validation),
                adapter=adapter,
                reflection_lm=calls,
                perfect_score=self.rewards[1],
                reflection_minibatch_size=min(self.examples, len(self.train)),
                stop_callbacks=[_Idle(calls)],
                logger=_Log(),
                callbacks=[listener],
                track_best_outputs=False,
                seed=self.seed,
            )
        except SearchEnded as ended:
            return str(ended)
        return f"all episodes of {_IDLE} proposals in a row had the reward {self.rewards[1]:g}"


class _Adapter:
    """Runs candidates for GEPA, and tells it what happened."""

    propose_new_texts = None

    def __init__(
        self,
        evaluate: Callable[[Texts, Sequence[Task]], Sequence[Sequence[RanEpisode]]],
        rewards: tuple[float, float],
    ) -> None:
        self._evaluate, self._rewards = evaluate, rewards

    def evaluate(self, batch: list[Task], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        from gepa.core.adapter import EvaluationBatch

        ran = self._evaluate(candidate, batch)
        rewards = [sum(one.reward(self._rewards) for one in episodes) / len(episodes) for episodes in ran]
        return EvaluationBatch(
            outputs=[None] * len(batch), scores=rewards, trajectories=list(ran) if capture_traces else None
        )

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        examples = [one.example for episodes in eval_batch.trajectories for one in episodes]
        return {name: examples for name in components_to_update}


class _CountedModel:
    """The reflection model as GEPA calls it."""

    def __init__(self, reflect: Callable[[str], str]) -> None:
        self.calls = 0
        self._reflect = reflect

    def __call__(self, prompt: str | list[dict[str, Any]]) -> str:
        assert isinstance(prompt, str)  # a list only with images
        self.calls += 1
        return self._reflect(prompt)


class _Idle:
    """Ends a search that proposes nothing any more."""

    def __init__(self, reflection: _CountedModel) -> None:
        self._reflection = reflection
        self._before, self._since = -1, 0

    def __call__(self, gepa_state: Any) -> bool:
        self._since = 0 if self._reflection.calls != self._before else self._since + 1
        self._before = self._reflection.calls
        return self._since >= _IDLE


class _Listener:
    """Hears of candidates that GEPA has evaluated on all validation tasks."""

    def __init__(self, report: Callable[[Candidate], None]) -> None:
        self._report = report

    def on_valset_evaluated(self, event: Mapping[str, Any]) -> None:
        parent = next(iter(event["parent_ids"]), None)
        self._report(
            Candidate(event["candidate_idx"], parent, dict(event["candidate"]), event["average_score"])
        )


class _Log:
    """GEPA's own messages, for `--verbose`."""

    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)
