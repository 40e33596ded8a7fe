"""The fields of the reader `generated`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ajet import Endpoint
from ajet.interfaces.reader import SelectingReader


class GeneratedSettings(SelectingReader):
    """What to generate tasks from, and how many. `work` reads these; the reader adds its tasks."""

    model: Endpoint = Field(description="The model that writes: base_url, model, prices, …")
    documents: Path | None = Field(
        None, description="A document or a folder of them: .txt, .md, .html, .pdf, .docx."
    )
    examples: Path | None = Field(None, description="A few tasks to imitate: a .jsonl with query and answer.")
    per_chunk: int = Field(3, ge=1, description="Questions to request about each chunk.")
    chunk_characters: int = Field(2000, ge=200, description="Maximum characters of a chunk of a document.")
    variations: int = Field(
        32,
        ge=0,
        description="How many tasks the model is to write in the style of the examples, if there are no documents.",
    )
    shots: int = Field(4, ge=1, description="Examples shown in one request.")
    instructions: str = Field(
        "", description="Further instructions for the model: language, difficulty, form."
    )
    temperature: float = Field(0.7, ge=0, le=2, description="Temperature of the writing model; checks use 0.")
    quality: float = Field(
        0.0, ge=0, le=1, description="Minimum score in the model's own check; 0: no check."
    )
    similarity: float = Field(
        0.8, gt=0, le=1, description="Similarity at which the later of two tasks is dropped."
    )
    embeddings: Endpoint | None = Field(
        None,
        description="Embedding model whose cosine is the similarity; default: shared character sequences.",
    )
    cache: Path = Field(Path(".ajet/generated"), description="Folder that stores the model's answers.")

    @model_validator(mode="after")
    def _has_material(self) -> Self:
        if self.documents is None and self.examples is None:
            raise ValueError("give `documents`, `examples`, or both")
        return self
