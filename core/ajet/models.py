"""What a job's ``model`` means: a folder, a Hugging Face id, or a recipe, whose model is built once and kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ajet.plugins import load_plugins, validated
from ajet.progress import Progress
from ajet.recipe import Recipe
from ajet.types import ConfigError
from ajet.workflow import load_object


def find_recipe(model: str) -> Recipe | None:
    """The recipe that a job's ``model`` names; None for a folder or a Hugging Face id. Raises ConfigError."""
    installed = load_plugins().classes.get(("recipe", model))
    if installed is not None:
        found: Any = installed.cls
    elif model.rpartition(":")[0].endswith(".py"):
        found = load_object(model, "model")
    else:
        return None
    if not (isinstance(found, type) and issubclass(found, Recipe)):
        raise ConfigError(
            f"model {model}: is no subclass of ajet.Recipe; name one, a folder or a Hugging Face id."
        )
    return validated(found, {}, f"model {model}")


def model_source(model: str, seed: int, progress: Progress) -> str:
    """The folder or the Hugging Face id of a job's model; a recipe is built if it is not there yet.

    Blocks for minutes when it builds, and must not be called from a running event loop. Raises ConfigError.
    """
    recipe = find_recipe(model)
    return str(cached(recipe, seed, progress)) if recipe else model


def cached(recipe: Recipe, seed: int, progress: Progress) -> Path:
    """The folder of a recipe's model in ``$AJET_CACHE`` (default ``~/.cache/ajet``), built if it is not there.

    It appears whole, by renaming, or not at all. A second process waits for the first one's build.
    """
    cache = Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{recipe.name}-{recipe.key(seed)}"
    if not folder.is_dir():
        with _locked(cache / f".{folder.name}.lock"):
            if not folder.is_dir():
                _build(recipe, folder, seed, progress)
    return folder


def _build(recipe: Recipe, folder: Path, seed: int, progress: Progress) -> None:
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        recipe.build(part, seed, progress)
        part.chmod(0o755)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold ``path`` as a lock between processes (POSIX ``flock``; it ends with its process)."""
    import fcntl

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
