"""``ajet fetch``: bring a run folder back from a store."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def app(
    url: Annotated[str, typer.Argument(metavar="URL", help="Folder in the store: s3://bucket/runs/NAME.")],
    into: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where the folder is put; it keeps its name.")
    ] = Path("runs"),
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="An option of fsspec's file system; may be repeated."),
    ] = None,
) -> None:
    """Copy a run folder, or a checkpoint, from an object store to this machine."""
    from ajet import ConfigError
    from ajet_loggers.store import fetch

    options = {}
    for pair in option or ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigError(f"--option {pair}", "write KEY=VALUE, such as endpoint=https://….")
        options[key] = value
    folder = fetch(url, into, options)
    print(f"fetched {folder}")
    if (folder / "job.yaml").exists():
        print(f"go on with: ajet run --resume {shlex.quote(str(folder))}")
