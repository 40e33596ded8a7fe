"""Recipes of pretrained models: their files are found or fetched, and converted once on this machine."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from pathlib import Path
from typing import Any

from ajet import Recipe, model_source
from ajet.interfaces.progress import Progress, current_progress

FORMAT = "1"
"""Raised when `ajet_local.gguf` writes something else than before."""


class Pretrained(Recipe):
    """A pretrained model in another form than Hugging Face's. All seeds give the same folder."""

    narrow = False

    @abstractmethod
    def source(self) -> str:
        """What decides the converted model, apart from `FORMAT`."""

    @abstractmethod
    def convert(self, folder: Path, progress: Progress) -> None:
        """Write model and tokenizer, in the Hugging Face layout, into a folder. Raises AjetError."""

    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """See `Recipe.build`."""
        self.convert(folder, progress)

    def key(self, seed: int) -> str:
        """16 hex digits over `source`."""
        return hashlib.sha256(f"{FORMAT} {self.source()}".encode()).hexdigest()[:16]

    def model(self) -> str:
        """What a job calls the model."""
        return self.name

    def folder(self) -> Path:
        """The converted model, which is made if it is not there."""
        return Path(model_source(self.model(), 0, current_progress()))

    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """See `Recipe.tokenizer`."""
        from ajet_local.modeling import load_tokenizer

        return load_tokenizer(self.folder())
