"""New tasks by a model, from documents and from a few examples.

Every answer of the model is journaled under a key over the whole request, and the tasks are a function of
those answers in the order of the documents. So a run that was killed goes on where it was, ends with the set of
an undisturbed one and pays for nothing twice; a changed document asks only for its own changed chunks.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import Field, model_validator

from ajet import AjetError, ConfigError, Task
from ajet.progress import current_progress
from ajet.reader import SelectingReader, content_id
from ajet_readers.endpoint import Caller, Endpoint, calling
from ajet_readers.generated import prompts
from ajet_readers.generated.documents import read_chunks
from ajet_readers.generated.prompts import Pair
from ajet_readers.journal import Journal
from ajet_readers.jsonl import JsonLines
from ajet_readers.near_duplicates import first_of_each, first_of_each_meaning, plain

T = TypeVar("T")
_ATTEMPTS = 3  # at an answer that can be read


class Generated(SelectingReader):
    """Questions with answers that a model writes: about documents, in the style of examples, or both.

    Answers are kept in ``cache``; what was answered once is never asked again. With ``part`` and
    ``hold_out`` the tasks of one chunk all belong to the same part, so that nothing leaks.
    """

    name = "generated"

    model: Endpoint = Field(description="The model that writes: base_url, model, prices, …")
    documents: Path | None = Field(
        None, description="A document or a folder of them: .txt, .md, .html, .pdf, .docx."
    )
    examples: Path | None = Field(None, description="A few tasks to imitate: a .jsonl with query and answer.")
    per_chunk: int = Field(3, ge=1, description="Questions asked for about each chunk.")
    chunk_characters: int = Field(2000, ge=200, description="Longest chunk of a document.")
    variations: int = Field(
        32,
        ge=0,
        description="New tasks asked for in the style of the examples, where there are no documents.",
    )
    shots: int = Field(4, ge=1, description="Examples shown in one request.")
    instructions: str = Field("", description="What else the model should know: language, difficulty, form.")
    temperature: float = Field(0.7, ge=0, le=2, description="Of the writing; checks are asked at 0.")
    quality: float = Field(
        0.0, ge=0, le=1, description="Least score that the model's own check must give; 0: no check."
    )
    similarity: float = Field(
        0.8, gt=0, le=1, description="From this similarity on, the later of two tasks is dropped."
    )
    embeddings: Endpoint | None = Field(
        None, description="Embedding model whose cosine is the similarity; absent: shared character runs."
    )
    cache: Path = Field(Path(".ajet/generated"), description="Folder with the journal of answers.")

    @model_validator(mode="after")
    def _has_material(self) -> Self:
        if self.documents is None and self.examples is None:
            raise ValueError("give `documents`, `examples`, or both")
        return self

    def source(self) -> Iterator[Task]:
        """Generate, or take from the journal, all tasks. Raises AjetError where the endpoint fails, and
        ConfigError for documents or examples that cannot be read."""
        units = self._units()
        with Journal(self.cache / "answers.jsonl") as journal, calling(self.model, journal) as caller:
            made = _all(units, lambda unit: self._make(unit, caller), self.model.concurrency, caller)
            tasks = [
                Task(
                    id=content_id({"query": pair.question}),
                    query=pair.question,
                    metadata={"answer": pair.answer, "source": unit.source, "chunk": unit.chunk},
                )
                for unit, pairs in zip(units, made, strict=True)
                for pair in pairs
            ]
            kept = self._different(tasks, journal)
        current_progress().say(
            f"generated: {len(kept)} tasks ({len(tasks) - len(kept)} near-duplicates dropped); {describe_costs(caller)}"
        )
        yield from kept

    def group_of(self, task: Task) -> str:
        """Tasks of one chunk belong to one part."""
        return str(task.metadata["chunk"] or task.id)

    def _units(self) -> list[_Unit]:
        examples = self._examples()
        chunks = read_chunks(self.documents, self.chunk_characters) if self.documents else []
        if chunks:
            return [_Unit(c.source, c.key, c.text, self._shots(examples, i)) for i, c in enumerate(chunks)]
        batches = -(-self.variations // self.per_chunk)
        return [_Unit(str(self.examples), "", None, self._shots(examples, i), i) for i in range(batches)]

    def _examples(self) -> list[Pair]:
        if self.examples is None:
            return []
        tasks = list(JsonLines(path=self.examples).tasks())
        if not tasks:
            raise ConfigError(f"{self.examples}: holds no examples.")
        for task in tasks:
            if not task.query or task.metadata.get("answer") is None:
                raise ConfigError(f"{self.examples}: the example {task.id!r} lacks a query or an answer.")
        return [Pair(task.query, str(task.metadata["answer"])) for task in tasks]

    def _shots(self, examples: Sequence[Pair], number: int) -> tuple[Pair, ...]:
        return tuple(random.Random(number).sample(examples, min(self.shots, len(examples))))

    def _make(self, unit: _Unit, caller: Caller) -> list[Pair]:
        """The tasks of one unit that pass the check."""
        if unit.text is None:
            ask = prompts.ask_of_examples(unit.shots, self.per_chunk, self.instructions)
        else:
            ask = prompts.ask_of_chunk(unit.text, unit.shots, self.per_chunk, self.instructions)
        pairs = _readable(caller, ask, prompts.read_pairs, unit.number, self.temperature)
        pairs = (pairs or [])[: self.per_chunk]
        if not pairs or not self.quality:
            return pairs
        check = prompts.ask_for_quality(pairs, unit.text)
        scores = _readable(caller, check, lambda text: prompts.read_scores(text, len(pairs)), 0, 0.0)
        return [
            pair
            for pair, score in zip(pairs, scores or [0.0] * len(pairs), strict=True)
            if score >= self.quality
        ]

    def _different(self, tasks: list[Task], journal: Journal) -> list[Task]:
        """The tasks without repetitions, of the examples neither: the first of similar ones stays."""
        known = {plain(pair.question) for pair in self._examples()}
        unique: list[Task] = []
        for task in tasks:
            if plain(task.query) not in known:
                known.add(plain(task.query))
                unique.append(task)
        texts = [task.query for task in unique]
        if self.embeddings is None:
            return [unique[i] for i in first_of_each(texts, self.similarity)]
        with calling(self.embeddings, journal) as caller:
            return [unique[i] for i in first_of_each_meaning(caller.embed(texts), self.similarity)]


@dataclass(frozen=True, slots=True)
class _Unit:
    """What one request is made of."""

    source: str
    chunk: str
    text: str | None
    shots: tuple[Pair, ...]
    number: int = 0


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
    units: Sequence[_Unit], make: Callable[[_Unit], list[Pair]], concurrency: int, caller: Caller
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
