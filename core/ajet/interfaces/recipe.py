"""Recipes: models that are built on this machine."""

from __future__ import annotations

import hashlib
import inspect
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.interfaces.base import Plugin
from ajet.interfaces.progress import Progress

if TYPE_CHECKING:
    from ajet.chat.vision import Vision


class Recipe(Plugin):
    """Builds a model, once per seed. A job's ``model`` is its name, or ``recipe.py:Name``."""

    kind = "recipe"

    @abstractmethod
    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """Write model and tokenizer, in the Hugging Face layout, into an empty folder. Blocks."""

    @abstractmethod
    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """The tokenizer of the model that `build` makes, and the name of its architecture, without building it."""

    def key(self, seed: int) -> str:
        """16 hex digits over the seed, the settings and all Python files that lie beside the class and its
        bases: what decides the result."""
        digest = hashlib.sha256(f"seed {seed} {self.model_dump_json()}".encode())
        bases = [cls for cls in type(self).__mro__ if issubclass(cls, Recipe) and cls is not Recipe]
        for folder in dict.fromkeys(Path(inspect.getfile(cls)).parent for cls in bases):
            for source in sorted(folder.glob("*.py")):
                digest.update(source.name.encode() + b"\0" + source.read_bytes())
        return digest.hexdigest()[:16]

    def vision(self, tokenizer: Any) -> Vision | None:
        """How the model sees images; None if it reads only text."""
        return None
