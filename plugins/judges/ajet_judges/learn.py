"""Learns rubrics from labelled responses: propose criteria, check them, keep those that rank like the labels, refine."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from ajet import ConfigError, EndpointUsage
from ajet_judges.endpoint import Asker, JudgeEndpoint
from ajet_judges.questions import Question, Verdict
from ajet_judges.rubric import TAKEN, Criterion, Rubric, rubric_question

if TYPE_CHECKING:
    from ajet.interfaces.algorithm import Float64

LEAST = 6
"""Minimum number of examples to learn from and hold out."""
SHOWN = 12
"""Maximum examples in a request for criteria."""
AT_ONCE = 10
"""Maximum criteria in a question about a response."""

PROPOSE = """You find out what makes responses good. The examples are responses to tasks{about}, each with a label: a higher
one is better.

Propose up to {count} criteria that tell better responses from worse ones. Each is one observable property, stated so
that anyone can say whether a response has it, without the other responses at hand. Set `wanted` to true if better
responses have it, to false if worse ones do. A `name` is a few lower-case words joined by underscores.{known}"""
KNOWN = """

KNOWN are the criteria so far, each with the share of pairs that it ranks as the labels do (0.5 is chance). Propose others:
sharper versions of those that work, and what they miss. WRONG marks examples that the rubric so far misjudges."""


@dataclass(frozen=True, slots=True)
class Example:
    """A labelled response. ``about`` contains the task and, if known, its reference answer."""

    about: Mapping[str, str]
    response: str
    label: float


class Proposed(BaseModel):
    """A criterion as a model proposes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str
    text: str = Field(min_length=1)
    wanted: bool


class Proposals(Verdict):
    """A model's answer to a request for criteria."""

    criteria: list[Proposed]


@dataclass(frozen=True, slots=True)
class LearnedRubric:
    """The best rubric, and how well it ranks responses."""

    rubric: Rubric
    cross_validated: float
    """Share of all pairs ranked correctly, with each reward from weights fitted without its response's fold."""
    held_out: float
    """Share of the pairs of held-out examples ranked correctly. Neither proposals nor weights saw their labels."""
    usage: EndpointUsage


@dataclass(slots=True)
class _State:
    criteria: list[Criterion] = field(default_factory=list)
    columns: list[list[float]] = field(default_factory=list)
    """For each criterion, 1 for each example that meets it, else 0."""

    def met(self) -> Float64:
        """float64[N, C]: 1 if a criterion favours a response, else 0."""
        import numpy as np

        signs = np.array([c.weight for c in self.criteria])
        table = np.array(self.columns).T
        favoured: Float64 = np.where(signs > 0, table, 1 - table)
        return favoured


async def learn(
    examples: Sequence[Example],
    endpoint: JudgeEndpoint,
    *,
    about: str = "",
    rounds: int = 3,
    count: int = 8,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> LearnedRubric:
    """The rubric that ranks labelled responses best, after ``rounds`` rounds of ``count`` proposals each.

    A third of the examples is held out: the model that proposes criteria never sees them. Raises ConfigError for too
    few examples or no usable criterion, EndpointFailed and MalformedVerdict as `Asker.ask` does.
    """
    import numpy as np

    labels = np.array([e.label for e in examples])
    held = _held_out(labels, seed)
    async with endpoint.open() as asker:
        state, best = _State(), None
        for number in range(1, rounds + 1):
            new = await _propose(asker, examples, ~held, state, about, count, f"{seed}:{number}")
            if new:
                columns = await _check(asker, examples, about, new)
                state = _State([*state.criteria, *new], [*state.columns, *columns])
            if not state.criteria:
                continue
            learned = _evaluated(state, labels, held, about, asker.spent)
            say(
                f"round {number}: {len(new)} new criteria, {len(state.criteria)} in all; "
                f"{learned.cross_validated:.0%} of pairs ranked correctly (cross-validated)"
            )
            if best is None or learned.cross_validated >= best.cross_validated:
                best = learned
        if best is None:
            raise ConfigError(
                f"{endpoint.model}: proposed no usable criterion in {rounds} rounds. Use a stronger model."
            )
        return LearnedRubric(best.rubric, best.cross_validated, best.held_out, asker.spent)


def read_examples(path: Path) -> list[Example]:
    """Labelled responses, one JSON object per line: ``response`` and ``label`` (good, bad, true, false or a number),
    optionally ``query`` and ``answer``. Raises ConfigError with file and line."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of examples.")
    examples = []
    # Split at newlines only: JSON strings may contain other Unicode line ends.
    for number, line in enumerate(path.read_bytes().removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError as error:
            raise ConfigError(
                f"{path}:{number}: not UTF-8 text ({error.reason} at byte {error.start + 1}). Fix the line."
            ) from None
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}:{number}: not JSON ({error}). Fix the line.") from None
        if not isinstance(record, dict) or not isinstance(record.get("response"), str):
            raise ConfigError(f"{path}:{number}: needs `response`, a text.")
        label = _label(record.get("label"))
        if label is None:
            raise ConfigError(
                f"{path}:{number}: `label` is {record.get('label')!r}; write good, bad, true, false or a number."
            )
        about = {"TASK": str(record.get("query") or "")}
        if record.get("answer") is not None:
            about["REFERENCE"] = str(record["answer"])
        examples.append(Example(about, record["response"], label))
    return examples


def _label(value: Any) -> float | None:
    words = {"good": 1.0, "bad": 0.0}
    if isinstance(value, str):
        return words.get(value.strip().lower())
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _held_out(labels: Float64, seed: int) -> Any:
    """bool[N]: every third example in order of labels; equal labels are in random order."""
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    held = np.zeros(len(labels), bool)
    held[order[1::3]] = True
    if len(labels) < LEAST or len(set(labels[held])) < 2 or len(set(labels[~held])) < 2:
        raise ConfigError(
            f"{len(labels)} examples, {len(set(labels.tolist()))} different labels: a rubric is learned from at least {LEAST}, "
            "with similar numbers of better and worse ones. Label more."
        )
    return held


async def _propose(
    asker: Asker,
    examples: Sequence[Example],
    shown: Any,
    state: _State,
    about: str,
    count: int,
    seed: str,
) -> list[Criterion]:
    """New criteria, with weight 1 or -1. The model sees a sample of the examples that are not held out."""
    chosen = [i for i, visible in enumerate(shown) if visible]
    random.Random(seed).shuffle(chosen)
    wrong = _misjudged(state, examples, chosen)
    chosen = [*wrong[: SHOWN // 2], *(i for i in chosen if i not in wrong)][:SHOWN]
    data = {}
    if state.criteria:
        data["KNOWN"] = "\n".join(_described(state, examples, shown))
    for number, i in enumerate(chosen, 1):
        example = examples[i]
        lines = [f"label: {example.label:g}{' WRONG' if i in wrong else ''}", *example.about.values()]
        data[f"EXAMPLE_{number}"] = "\n\n".join([*(line for line in lines if line), example.response])
    instructions = PROPOSE.format(
        about=f" ({about})" if about else "", count=count, known=KNOWN if state.criteria else ""
    )
    answer, _ = await asker.ask(Question(instructions, data, Proposals))
    taken = {c.name for c in state.criteria} | TAKEN
    texts = {c.text for c in state.criteria}
    new = []
    for proposed in answer.criteria[:count]:
        text = " ".join(proposed.text.split())
        if text not in texts:
            name = _name(proposed.name, taken)
            taken.add(name)
            texts.add(text)
            new.append(Criterion(name=name, text=text, weight=1.0 if proposed.wanted else -1.0))
    return new


def _name(proposed: str, taken: set[str]) -> str:
    stem = re.sub(r"[^a-z0-9]+", "_", proposed.lower()).strip("_")[:36]
    stem = stem if stem[:1].isalpha() else f"c_{stem}".rstrip("_")
    return next(n for n in (stem, *(f"{stem}_{i}" for i in range(2, 999))) if n not in taken)


async def _check(
    asker: Asker, examples: Sequence[Example], about: str, criteria: Sequence[Criterion]
) -> list[list[float]]:
    """For each criterion, 1 for each example that meets it, else 0."""

    async def check(example: Example) -> list[float]:
        met: list[float] = []
        for start in range(0, len(criteria), AT_ONCE):
            part = Rubric(about=about, criteria=tuple(criteria[start : start + AT_ONCE]))
            verdict, _ = await asker.ask(rubric_question(part, dict(example.about), example.response))
            met += [float(getattr(verdict, c.name)) for c in part.criteria]
        return met

    rows = await asyncio.gather(*(check(example) for example in examples))
    return [list(column) for column in zip(*rows, strict=True)]


def _evaluated(state: _State, labels: Float64, held: Any, about: str, usage: EndpointUsage) -> LearnedRubric:
    from ajet_judges.fit import cross_validated, fit, ranked_correctly

    met = state.met()
    blind = fit(met[~held], labels[~held])
    held_out = ranked_correctly(met[held] @ blind, labels[held])
    score = cross_validated(met, labels)
    weights = fit(met, labels)
    kept = [
        c.model_copy(update={"weight": float(w) * c.weight})
        for c, w in sorted(zip(state.criteria, weights, strict=True), key=lambda pair: -pair[1])
        if w > 0
    ]
    pairs = int((labels[:, None] > labels[None, :]).sum())
    learned = {
        "examples": len(labels),
        "pairs": pairs,
        "cross_validated": round(score, 3),
        "held_out": round(held_out, 3),
        "criteria_tried": len(state.criteria),
    }
    return LearnedRubric(Rubric(about=about, criteria=tuple(kept), learned=learned), score, held_out, usage)


def _described(state: _State, examples: Sequence[Example], shown: Any) -> list[str]:
    import numpy as np

    from ajet_judges.fit import ranked_correctly

    labels = np.array([e.label for e in examples])[shown]
    met = state.met()[shown]
    return [
        f"{c.name}: {c.text} ({ranked_correctly(met[:, i], labels):.2f})"
        for i, c in enumerate(state.criteria)
    ]


def _misjudged(state: _State, examples: Sequence[Example], chosen: Sequence[int]) -> list[int]:
    """The chosen examples that the rubric so far misranks, the most often misranked first."""
    import numpy as np

    from ajet_judges.fit import fit

    if not state.criteria:
        return []
    labels = np.array([examples[i].label for i in chosen])
    met = state.met()[list(chosen)]
    rewards = met @ fit(met, labels)
    wrong = (np.sign(labels[:, None] - labels[None, :]) * (rewards[:, None] - rewards[None, :]) < 0).sum(1)
    return [chosen[i] for i in np.argsort(-wrong, kind="stable") if wrong[i]]
