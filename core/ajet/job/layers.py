"""A job file, arguments and ``set`` values, laid over each other with their sources: for commands and the Python API."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ajet.job.arguments import SET
from ajet.job.config import JobConfig, Layers, parse_set, read_job_file
from ajet.job.objects import OWN_LOOP, lay_object
from ajet.own_plugins import remedy
from ajet.plugins import load_plugins
from ajet.types import ConfigError
from ajet.utils.keys import leaves


def job_layers(job_file: Path | None) -> Layers:
    """The layers of a job file, or none yet. Raises ConfigError."""
    layers = Layers()
    if job_file is None:
        return layers
    values = read_job_file(job_file)
    if (translated := _translated(job_file, values)) is not None:
        return translated
    layers.add(values, str(job_file), job_file.resolve().parent)
    return layers


def _translated(path: Path, values: Mapping[str, Any]) -> Layers | None:
    """The layers of a file of another program, which a plugin reads (`ajet_job_file`); None for a job file. Raises ConfigError."""
    foreign = [key for key in values if key not in JobConfig.model_fields]
    if not foreign and not isinstance(values.get("model"), Mapping):
        return None
    layers: Layers | None = load_plugins().manager.hook.ajet_job_file(path=path, values=values)
    if layers is None:
        for key in foreign:
            if isinstance(values[key], Mapping) and (hint := remedy("section", key)):
                raise ConfigError(f"{path}: no job has a section {key!r}. A plugin reads such files.{hint}")
    return layers


def resumed_layers(run_dir: Path) -> Layers:
    """The job that a run folder was started with. Raises ConfigError if it is not a run folder."""
    if not (run_dir / "job.yaml").is_file():
        fault = "it holds no job.yaml" if run_dir.is_dir() else "no such folder"
        raise ConfigError(
            f"resume= {run_dir}", f"{fault}. Name the folder of a run, such as runs/20250131-120000."
        )
    layers = job_layers(run_dir / "job.yaml")
    if layers.values.get("task", {}).get("reader") == {"type": OWN_LOOP}:
        raise ConfigError(
            f"resume= {run_dir}",
            "a training loop of its own (ajet.open) made this run, and only a run of a job can be resumed. Begin another loop "
            "with model= set to its last checkpoint.",
        )
    return layers


def lay_sets(layers: Layers, sets: Iterable[str] | Mapping[str, Any] | None) -> None:
    """Every ``--set a.b.c=value``, or item of ``set={"a.b.c": value}``: the strongest layer. Raises ConfigError."""
    if isinstance(sets, Mapping):
        for key, value in sets.items():
            lay_object(layers, key, value, SET)
        return
    for text in sets or ():
        key, value = parse_set(text)
        layers.set(key, value, SET, Path.cwd())  # null, too: it unsets a key


def provenance(layers: Layers) -> list[tuple[str, str, str]]:
    """(key, value, source) of every value that the user set."""
    return [(key, _short(value), layers.source_of(key)) for key, value in leaves(layers.values)]


def import_from_here() -> None:
    """Let ``pkg.module:Name`` find modules of the working directory, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
