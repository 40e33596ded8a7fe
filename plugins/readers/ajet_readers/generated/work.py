"""From documents and examples to requests, and from answers to tasks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ajet import AjetError, AnswerStore, ConfigError, Task
from ajet.interfaces.progress import current_progress
from ajet.interfaces.reader import content_id
from ajet_readers.asking import CachingEndpoint, calling, finished
from ajet_readers.generated import prompts
from ajet_readers.generated.documents import read_chunks
from ajet_readers.generated.prompts import Pair
from ajet_readers.generated.settings import GeneratedSettings
from ajet_readers.jsonl import JsonLines
from ajet_readers.near_duplicates import first_of_each, first_of_each_meaning, plain

T = TypeVar("T")
_ATTEMPTS = 3
"""Requests until an answer can be parsed."""


@dataclass(frozen=True, slots=True)
class RequestMaterial:
    """The material of one request: a chunk of a document, or examples alone."""

    source: str
    chunk: str
    text: str | None
    shots: tuple[Pair, ...]
    number: int = 0


def generate(settings: GeneratedSettings) -> list[Task]:
    """All tasks of a reader. Raises AjetError if the endpoint fails, and ConfigError for documents or examples that
    cannot be read."""
    examples = _examples(settings)
    units = _units(settings, examples)
    return finished(_generate(settings, units, examples))


async def _generate(
    settings: GeneratedSettings, units: Sequence[RequestMaterial], examples: Sequence[Pair]
) -> list[Task]:
    with AnswerStore(settings.cache / "answers.sqlite", exclusive=True) as journal:
        async with calling(settings.model, journal) as caller:
            made = await _all(settings, units, caller)
        tasks = [
            Task(
                id=content_id({"query": pair.question}),
                query=pair.question,
                metadata={"answer": pair.answer, "source": unit.source, "chunk": unit.chunk},
            )
            for unit, pairs in zip(units, made, strict=True)
            for pair in pairs
        ]
        kept = await _different(settings, tasks, examples, journal)
    current_progress().say(
        f"generated: {len(kept)} tasks ({len(tasks) - len(kept)} near-duplicates dropped); {caller.spent}"
    )
    return kept


def _units(settings: GeneratedSettings, examples: Sequence[Pair]) -> list[RequestMaterial]:
    chunks = read_chunks(settings.documents, settings.chunk_characters) if settings.documents else []
    if chunks:
        # The chunk's key chooses its examples, so its request does not depend on its position.
        return [RequestMaterial(c.source, c.key, c.text, _shots(settings, examples, c.key)) for c in chunks]
    batches = -(-settings.variations // settings.per_chunk)
    return [
        RequestMaterial(str(settings.examples), "", None, _shots(settings, examples, str(i)), i)
        for i in range(batches)
    ]


def _examples(settings: GeneratedSettings) -> list[Pair]:
    if settings.examples is None:
        return []
    if not settings.examples.is_file():
        raise ConfigError(f"{settings.examples}: no such file. Check the reader's `examples`.")
    tasks = list(JsonLines(path=settings.examples).tasks())
    if not tasks:
        raise ConfigError(f"{settings.examples}: contains no examples.")
    for task in tasks:
        if not task.query or task.metadata.get("answer") is None:
            raise ConfigError(f"{settings.examples}: the example {task.id!r} lacks a query or an answer.")
    return [Pair(task.query, str(task.metadata["answer"])) for task in tasks]


def _shots(settings: GeneratedSettings, examples: Sequence[Pair], seed: str) -> tuple[Pair, ...]:
    return tuple(random.Random(seed).sample(examples, min(settings.shots, len(examples))))


async def _make(
    settings: GeneratedSettings, unit: RequestMaterial, caller: CachingEndpoint
) -> list[Pair] | None:
    """The tasks of one unit that pass the quality check; None if no answer could be parsed."""
    if unit.text is None:
        ask = prompts.ask_of_examples(unit.shots, settings.per_chunk, settings.instructions)
    else:
        ask = prompts.ask_of_chunk(unit.text, unit.shots, settings.per_chunk, settings.instructions)
    pairs = await _parsed(caller, ask, prompts.read_pairs, unit.number, settings.temperature)
    if pairs is None:
        return None
    pairs = pairs[: settings.per_chunk]
    if not pairs or not settings.quality:
        return pairs
    check = prompts.ask_for_quality(pairs, unit.text)
    count = len(pairs)
    scores = await _parsed(caller, check, lambda text: prompts.read_scores(text, count), unit.number, 0.0)
    if scores is None:
        return None
    return [pair for pair, score in zip(pairs, scores, strict=True) if score >= settings.quality]


async def _different(
    settings: GeneratedSettings, tasks: list[Task], examples: Sequence[Pair], journal: AnswerStore
) -> list[Task]:
    """The tasks without repetitions of each other or of the examples; the first of similar tasks stays."""
    known = {plain(pair.question) for pair in examples}
    unique: list[Task] = []
    for task in tasks:
        if plain(task.query) not in known:
            known.add(plain(task.query))
            unique.append(task)
    texts = [task.query for task in unique]
    if settings.embeddings is None:
        return [unique[i] for i in first_of_each(texts, settings.similarity)]
    async with calling(settings.embeddings, journal) as caller:
        vectors = await caller.embed(texts)
    return [unique[i] for i in first_of_each_meaning(vectors, settings.similarity)]


async def _parsed(
    caller: CachingEndpoint,
    messages: prompts.Messages,
    read: Callable[[str], T],
    number: int,
    temperature: float,
) -> T | None:
    """A parsed answer. An answer that cannot be parsed is requested again; None after the last attempt."""
    for attempt in range(_ATTEMPTS):
        answer = await caller.chat(messages, number=number * _ATTEMPTS + attempt, temperature=temperature)
        try:
            return read(answer)
        except ValueError:
            continue
    return None


async def _all(
    settings: GeneratedSettings, units: Sequence[RequestMaterial], caller: CachingEndpoint
) -> list[list[Pair]]:
    """The tasks of every unit, in order. The first failure cancels the rest."""
    progress = current_progress()
    done = tasks = 0

    async def make(unit: RequestMaterial) -> list[Pair] | None:
        nonlocal done, tasks
        pairs = await _make(settings, unit, caller)
        done, tasks = done + 1, tasks + len(pairs or ())
        progress.stage("generating", done / len(units), {"tasks": tasks, "cost": caller.spent.cost})
        return pairs

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(make(unit)) for unit in units]
    except* AjetError as failures:
        raise failures.exceptions[0] from None
    made = [task.result() for task in running]
    if given_up := made.count(None):
        progress.say(f"{given_up} requests had no readable answer in {_ATTEMPTS} attempts")
        if given_up == len(units):
            raise AjetError(
                "generated: no answer of the model could be read as tasks; does it follow instructions and write JSON?"
            )
    return [pairs or [] for pairs in made]
