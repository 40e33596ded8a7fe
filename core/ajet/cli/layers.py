"""A command's job file, flags and ``--set`` in layers, each value with its source."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet.job.config import Layers


def job_layers(job_file: Path | None) -> Layers:
    """The layers of a job file, or none yet. Raises ConfigError."""
    from ajet.job.config import Layers, read_job_file

    layers = Layers()
    if job_file is not None:
        layers.add(read_job_file(job_file), str(job_file), job_file.resolve().parent)
    return layers


def resumed_layers(run_dir: Path) -> Layers:
    """The job that a run folder was started with. Raises ConfigError if it is not a run folder."""
    from ajet.types import ConfigError

    if not (run_dir / "job.yaml").is_file():
        found = "it holds no job.yaml" if run_dir.is_dir() else "no such folder"
        raise ConfigError(
            f"--resume {run_dir}: {found}. Name the folder of a run, such as runs/20250131-120000."
        )
    return job_layers(run_dir / "job.yaml")


def lay_flag(layers: Layers, flag: str, key: str, value: Any) -> None:
    """Let a flag's value override the key, if the flag was given."""
    if value is not None:
        layers.set(key, value, flag, Path.cwd())


def lay_tasks(layers: Layers, flag: str, key: str, path: Path | None) -> None:
    """A file of tasks. If the job already reads such a file, only the path changes and its field names stay."""
    if path is None:
        return
    current = (layers.values.get("task") or {}).get(key.rpartition(".")[2])
    absolute = str(path.expanduser().resolve())
    if isinstance(current, dict) and current.get("type") == "jsonl":
        lay_flag(layers, flag, f"{key}.path", absolute)
    else:
        lay_flag(layers, flag, key, {"type": "jsonl", "path": absolute})


def lay_sets(layers: Layers, sets: Iterable[str] | None) -> None:
    """Every ``--set a.b.c=value``, the strongest layer. Raises ConfigError."""
    from ajet.job.config import parse_set

    for text in sets or ():
        key, value = parse_set(text)
        layers.set(key, value, "--set", Path.cwd())  # null, too: it unsets a key


@contextmanager
def services(layers: Layers, names: Iterable[str] | None) -> Iterator[None]:
    """A block in which the job's services and those of ``--with`` run; their states are reported on stderr."""
    from ajet.services.supervisor import with_services

    with with_services(layers, names or (), tell):
        yield


def tell(text: str) -> None:
    """Print a line for the user on stderr, apart from the command's output."""
    print(text, file=sys.stderr, flush=True)


def provenance(layers: Layers) -> list[tuple[str, str, str]]:
    """(key, value, source) of every value that the user set."""
    from ajet.job.config import leaves

    return [(key, _short(value), layers.source_of(key)) for key, value in leaves(layers.values)]


def import_from_here() -> None:
    """Let ``pkg.module:Name`` find modules of the working directory, as ``python -m`` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"
