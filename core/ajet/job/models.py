"""What a job's ``model`` means: a folder, a Hugging Face id, or a recipe, whose model is built once and kept."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ajet.interfaces.progress import Progress
from ajet.interfaces.recipe import Recipe
from ajet.interfaces.workflow import load_object, location_of
from ajet.plugins import load_plugins, validated
from ajet.types import AjetError, ConfigError
from ajet.utils.files import writing
from ajet.utils.suggest import nearest
from ajet.utils.user_code import is_users

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
"""``owner/name``. Only the hub knows whether there is such a model."""


def find_recipe(model: str) -> Recipe | None:
    """The recipe that a job's ``model`` names; None for a folder or a Hugging Face id. Raises ConfigError."""
    recipes = load_plugins().of(Recipe)
    for cls in recipes.values():
        if cls.suffix and model.lower().endswith(cls.suffix):
            return validated(cls, {"file": model}, f"model {model}")
    recipe: Any = recipes.get(model)
    if recipe is None and model.rpartition(":")[0].endswith(".py"):
        recipe = load_object(model, "model")
    if recipe is None:
        return None
    if not (isinstance(recipe, type) and issubclass(recipe, Recipe)):
        raise ConfigError(
            f"model {model}", "is not a subclass of ajet.Recipe; name one, a folder or a Hugging Face id."
        )
    return validated(recipe, {}, f"model {model}")


def about(recipe: Recipe) -> str:
    """What a recipe says of its model: ``starter: A small model that …``; empty if its class has no docstring."""
    first = inspect.cleandoc(type(recipe).__doc__ or "").partition("\n\n")[0]
    said = " ".join(first.split()).rstrip(".")
    return f"{recipe.name}: {said}" if said else ""


def check_model(model: str, key: str = "model") -> None:
    """Raise ConfigError for what cannot be a model: no recipe, no folder, and not in the form of a Hugging Face id."""
    if find_recipe(model) or Path(model).expanduser().is_dir():
        return
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        fault = "is not a directory" if Path(model).expanduser().exists() else "no such folder"
        raise ConfigError(f"{key} {model}", f"{fault}. Give the folder of a model, with its config.json.")
    if not _HUB_ID.fullmatch(model):
        recipes = sorted(load_plugins().of(Recipe))
        raise ConfigError(
            f"{key} {model}",
            f"no such recipe or folder{nearest(model, recipes)}. Name a recipe ({', '.join(recipes)}), "
            "a folder, or a Hugging Face id in the form owner/name, such as openai-community/gpt2.",
        )


def check_reference(reference: str) -> None:
    """Raise ConfigError for what cannot be `train.reference`: a recipe, or what cannot be a model."""
    if find_recipe(reference):
        raise ConfigError(
            "train.reference",
            f"{reference} is a recipe; name the folder of a model, or leave the key out: the reference is then "
            "the model's initial weights.",
        )
    check_model(reference, "train.reference")


def model_source(model: str, seed: int, progress: Progress) -> str:
    """The folder or the Hugging Face id of a job's model; a recipe is built if it is not there yet.

    Blocks for minutes when it builds, and must not be called from a running event loop. Raises AjetError.
    """
    recipe = find_recipe(model)
    if recipe:
        return str(cached(recipe, seed, progress))
    check_available(model)
    return model


def check_vocabulary(reference: str, its: Mapping[str, int], trained: Mapping[str, int]) -> None:
    """Raise ConfigError unless the vocabulary of `train.reference` is that of the trained model."""
    if its != trained:
        raise ConfigError(
            "train.reference",
            f"{reference} has another tokenizer than the trained model, so it cannot score "
            "its tokens. Name a model of the same family.",
        )


def check_available(model: str) -> None:
    """Raise AjetError if ``model`` is neither a folder nor the id of a model that the Hugging Face Hub gives us.

    That is one request to the hub, and none for what is in its cache. The libraries that load models would try
    several times, for several files, before they say so.
    """
    check_model(model)
    if Path(model).expanduser().exists():
        return
    try:
        from huggingface_hub import HfApi, errors, try_to_load_from_cache
    except ImportError:  # it comes with whatever loads models
        return
    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    try:
        HfApi().model_info(model, timeout=20)
    except errors.RepositoryNotFoundError:
        fault = "the Hugging Face Hub has no such model, or it is private or gated. Check the id, or set HF_TOKEN."
    except errors.OfflineModeIsEnabled:
        fault = "it is not in the Hugging Face cache, and HF_HUB_OFFLINE is set. Give the model's folder."
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        fault = f"the Hugging Face Hub answered {status}. Try again later, or give the folder of a downloaded model."
    except Exception as error:  # of the hub's HTTP library, which changes
        cause = (str(error).strip().splitlines() or [""])[0]
        fault = (
            f"the Hugging Face Hub cannot be reached ({type(error).__name__}: {cause}). "
            "Give the folder of a downloaded model, or a recipe."
        )
    else:
        return
    raise AjetError(f"model {model}", fault)


def generation_config(source: str) -> Path | None:
    """The ``generation_config.json`` of a model folder, or of a Hugging Face id, which is downloaded unless it is in the cache;
    None if there is none."""
    file = Path(source, "generation_config.json")
    if Path(source).is_dir() or not _HUB_ID.fullmatch(source):
        return file if source and file.is_file() else None
    from huggingface_hub import errors, hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(source, file.name)
    if cached is not None:
        return Path(cached) if isinstance(cached, str) else None  # else it is known that there is none
    try:
        return Path(hf_hub_download(source, file.name))
    except (errors.EntryNotFoundError, errors.RepositoryNotFoundError):
        return None


def cached(recipe: Recipe, seed: int, progress: Progress) -> Path:
    """The folder of a recipe's model in ``$AJET_CACHE`` (default ``~/.cache/ajet``), built if it is not there.

    It appears whole, by renaming, or not at all. A second process waits for the first one's build; what an interrupted build
    has left is there for the next one to continue. Raises AjetError if the cache cannot be written, or if the user's own
    recipe fails.
    """
    cache = Path(os.environ.get("AJET_CACHE") or "~/.cache/ajet").expanduser()
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{recipe.name}-{recipe.key(seed)}"
    if not folder.is_dir():
        from filelock import FileLock, Timeout

        lock, builder = FileLock(cache / f".{folder.name}.lock"), cache / f".{folder.name}.pid"
        try:
            turn = lock.acquire(timeout=1)
        except Timeout:
            who = f"process {builder.read_text()}" if builder.exists() else "another process"
            progress.say(f"waiting for {who}, which builds the model {recipe.name}")
            turn = lock.acquire()
        with turn:
            if not folder.is_dir():
                builder.write_text(str(os.getpid()))
                try:
                    _build(recipe, folder, seed, progress)
                finally:
                    builder.unlink()
    return folder


def _build(recipe: Recipe, folder: Path, seed: int, progress: Progress) -> None:
    part = folder.with_name(f".{folder.name}.part")
    part.mkdir(exist_ok=True)
    if recipe.narrow and (said := about(recipe)):
        progress.say(f"the model is built once, then kept; {said}. --model names another")
    try:
        recipe.build(part, seed, progress)
    except KeyboardInterrupt:
        progress.say(
            f"the build of the model {recipe.name} was interrupted; the next one continues in {part}"
        )
        raise
    except Exception as error:
        if isinstance(error, AjetError) or not is_users(inspect.getfile(type(recipe))):
            raise
        said = f"{type(error).__name__}: {error} (at {location_of(error)})"
        raise AjetError(f"model {recipe.name}", f"its recipe fails: {said}. Fix that line.") from error
    part.rename(folder)
