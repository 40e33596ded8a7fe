"""New tasks by a model, from documents and from a few examples.

Every answer of the model is journaled under a key over the whole request, and the tasks are a function of
those answers in the order of the documents. So a run that was killed goes on where it was, ends with the set of
an undisturbed one and pays for nothing twice; a changed document asks only for its own changed chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ajet import Task
from ajet.interfaces.reader import SelectingReader
from ajet.services.llm_client import Endpoint


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
    chunk_characters: int = Field(2000, ge=200, description="Maximum characters of a chunk of a document.")
    variations: int = Field(
        32,
        ge=0,
        description="New tasks to request in the style of the examples, if there are no documents.",
    )
    shots: int = Field(4, ge=1, description="Examples shown in one request.")
    instructions: str = Field("", description="What else the model should know: language, difficulty, form.")
    temperature: float = Field(0.7, ge=0, le=2, description="Temperature of the writing model; checks use 0.")
    quality: float = Field(
        0.0, ge=0, le=1, description="Minimum score in the model's own check; 0: no check."
    )
    similarity: float = Field(
        0.8, gt=0, le=1, description="Similarity from which the later of two tasks is dropped."
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
        from ajet_readers.generated.work import generate  # heavier than `ajet --help` can bear

        yield from generate(self)

    def group_of(self, task: Task) -> str:
        """Tasks of one chunk belong to one part."""
        return str(task.metadata["chunk"] or task.id)
