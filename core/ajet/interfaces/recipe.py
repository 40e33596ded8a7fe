"""Recipes: models that are built, fetched or converted on this machine."""

from __future__ import annotations

import dis
import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from ajet.interfaces.base import Plugin
from ajet.interfaces.progress import Progress

if TYPE_CHECKING:
    from ajet.chat.vision import Vision


class Recipe(Plugin):
    """Builds a model, once per seed. A job's ``model`` is its name, or ``recipe.py:Name``."""

    kind = "recipe"
    suffix: ClassVar[str] = ""
    """Ending of the files that the recipe converts: such a file is a job's ``model`` too, and the recipe's field ``file``."""

    narrow: ClassVar[bool] = True
    """Whether the model knows little else than what the first line of the class's docstring says, which users are then told before it
    is built, and where an agent asks for more."""

    @abstractmethod
    def build(self, folder: Path, seed: int, progress: Progress) -> None:
        """Write model and tokenizer, in the Hugging Face layout, into a folder. It is empty, or holds what an interrupted build
        with the same `key` has left. Blocks."""

    @abstractmethod
    def tokenizer(self, seed: int) -> tuple[Any, str]:
        """The tokenizer of the model that `build` makes, and the name of its architecture, without building it."""

    def key(self, seed: int) -> str:
        """16 hex digits over what decides the result: the seed, the settings, the files of the class and its bases, and the
        Python files beside them that these import."""
        digest = hashlib.sha256(f"seed {seed} {self.model_dump_json()}".encode())
        bases = [cls for cls in type(self).__mro__ if issubclass(cls, Recipe) and cls is not Recipe]
        files = _with_imported(Path(inspect.getfile(cls)) for cls in bases)
        for name, source in sorted((file.name, file.read_bytes()) for file in files):
            digest.update(name.encode() + b"\0" + source)
        return digest.hexdigest()[:16]

    def vision(self, tokenizer: Any) -> Vision | None:
        """How the model sees images; None if it reads only text."""
        return None


def _with_imported(files: Iterable[Path]) -> set[Path]:
    """Python files, and those beside them that they import, directly or not."""
    reached, waiting = set[Path](), list(files)
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            names = set(_imported(file))
            waiting += [beside for beside in file.parent.glob("*.py") if beside.stem in names]
    return reached


def _imported(file: Path) -> Iterator[str]:
    """All parts of the names that a Python file imports, also within functions."""
    codes = [compile(file.read_bytes(), file, "exec")]
    while codes:
        code = codes.pop()
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("IMPORT_NAME", "IMPORT_FROM"):
                yield from instruction.argval.split(".")
