"""Material to requests, answers to tasks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ajet import AjetError, ConfigError, Task
from ajet.progress import current_progress
from ajet.reader import content_id
from ajet_readers.endpoint import Caller, calling
from ajet_readers.generated import prompts
from ajet_readers.generated.documents import read_chunks
from ajet_readers.generated.prompts import Pair
from ajet_readers.journal import Journal
from ajet_readers.jsonl import JsonLines
from ajet_readers.near_duplicates import first_of_each, first_of_each_meaning, plain

if TYPE_CHECKING:
    from ajet_readers.generated import Generated

T = TypeVar("T")
_ATTEMPTS = 3  # at an answer that can be read


@dataclass(frozen=True, slots=True)
class Unit:
    """What one request is made of: a chunk of a document, or examples alone."""

    source: str
    chunk: str
    text: str | None
    shots: tuple[Pair, ...]
    number: int = 0


def generate(settings: Generated) -> list[Task]:
    """All tasks of a reader. Raises AjetError where the endpoint fails, and ConfigError for documents or
    examples that cannot be read."""
    examples = _examples(settings)
    units = _units(settings, examples)
    with Journal(settings.cache / "answers.jsonl") as journal, calling(settings.model, journal) as caller:
        made = _all(units, lambda unit: _make(settings, unit, caller), settings.model.concurrency, caller)
        tasks = [
            Task(
                id=content_id({"query": pair.question}),
                query=pair.question,
                metadata={"answer": pair.answer, "source": unit.source, "chunk": unit.chunk},
            )
            for unit, pairs in zip(units, made, strict=True)
            for pair in pairs
        ]
        kept = _different(settings, tasks, examples, journal)
    current_progress().say(
        f"generated: {len(kept)} tasks ({len(tasks) - len(kept)} near-duplicates dropped); {describe_costs(caller)}"
    )
    return kept


def _units(settings: Generated, examples: Sequence[Pair]) -> list[Unit]:
    chunks = read_chunks(settings.documents, settings.chunk_characters) if settings.documents else []
    if chunks:
        # The chunk chooses its examples, so that it is asked the same wherever it stands.
        return [Unit(c.source, c.key, c.text, _shots(settings, examples, c.key)) for c in chunks]
    batches = -(-settings.variations // settings.per_chunk)
    return [
        Unit(str(settings.examples), "", None, _shots(settings, examples, str(i)), i) for i in range(batches)
    ]


def _examples(settings: Generated) -> list[Pair]:
    if settings.examples is None:
        return []
    tasks = list(JsonLines(path=settings.examples).tasks())
    if not tasks:
        raise ConfigError(f"{settings.examples}: holds no examples.")
    for task in tasks:
        if not task.query or task.metadata.get("answer") is None:
            raise ConfigError(f"{settings.examples}: the example {task.id!r} lacks a query or an answer.")
    return [Pair(task.query, str(task.metadata["answer"])) for task in tasks]


def _shots(settings: Generated, examples: Sequence[Pair], seed: str) -> tuple[Pair, ...]:
    return tuple(random.Random(seed).sample(examples, min(settings.shots, len(examples))))


def _make(settings: Generated, unit: Unit, caller: Caller) -> list[Pair]:
    """The tasks of one unit that pass the check."""
    if unit.text is None:
        ask = prompts.ask_of_examples(unit.shots, settings.per_chunk, settings.instructions)
    else:
        ask = prompts.ask_of_chunk(unit.text, unit.shots, settings.per_chunk, settings.instructions)
    pairs = _readable(caller, ask, prompts.read_pairs, unit.number, settings.temperature)
    pairs = (pairs or [])[: settings.per_chunk]
    if not pairs or not settings.quality:
        return pairs
    check = prompts.ask_for_quality(pairs, unit.text)
    scores = _readable(caller, check, lambda text: prompts.read_scores(text, len(pairs)), unit.number, 0.0)
    return [
        pair
        for pair, score in zip(pairs, scores or [0.0] * len(pairs), strict=True)
        if score >= settings.quality
    ]


def _different(
    settings: Generated, tasks: list[Task], examples: Sequence[Pair], journal: Journal
) -> list[Task]:
    """The tasks without repetitions, of the examples neither: the first of similar ones stays."""
    known = {plain(pair.question) for pair in examples}
    unique: list[Task] = []
    for task in tasks:
        if plain(task.query) not in known:
            known.add(plain(task.query))
            unique.append(task)
    texts = [task.query for task in unique]
    if settings.embeddings is None:
        return [unique[i] for i in first_of_each(texts, settings.similarity)]
    with calling(settings.embeddings, journal) as caller:
        return [unique[i] for i in first_of_each_meaning(caller.embed(texts), settings.similarity)]


def describe_costs(caller: Caller) -> str:
    """``12 calls (3 more from the journal), 4,567 + 890 tokens, cost 0.0123``"""
    counts = caller.counts
    return (
        f"{counts['calls']} calls ({counts['journaled']} more from the journal), "
        f"{counts['input_tokens']:,} + {counts['output_tokens']:,} tokens, cost {caller.cost:.4f}"
    )


def _readable(
    caller: Caller, messages: prompts.Messages, read: Callable[[str], T], number: int, temperature: float
) -> T | None:
    """What an answer says, asking anew while it cannot be read; None after the last attempt."""
    for attempt in range(_ATTEMPTS):
        try:
            return read(caller.chat(messages, number=number * _ATTEMPTS + attempt, temperature=temperature))
        except ValueError:
            caller.count(unreadable=1)
    caller.count(given_up=1)
    return None


def _all(
    units: Sequence[Unit], make: Callable[[Unit], list[Pair]], concurrency: int, caller: Caller
) -> list[list[Pair]]:
    """What every unit gives, in their order. The first failure ends all."""
    progress = current_progress()
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(concurrency, "ajet-generate") as pool:
        futures: list[Future[list[Pair]]] = [pool.submit(make, unit) for unit in units]
        pending: set[Future[Any]] = set(futures)
        try:
            while pending:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    counts["tasks"] += len(future.result())
                share = 1 - len(pending) / len(units)
                progress.stage("generating", share, {"tasks": counts["tasks"], "cost": caller.cost})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if given_up := caller.counts["given_up"]:
        progress.say(f"{given_up} requests without an answer that could be read in {_ATTEMPTS} attempts")
        if given_up >= len(units):
            raise AjetError(
                "generated: no answer of the model could be read as tasks; does it follow instructions and write JSON?"
            )
    return [future.result() for future in futures]
