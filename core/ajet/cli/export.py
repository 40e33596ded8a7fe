"""``ajet export``: a checkpoint as a complete model in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder of a run.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder.")],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Target whose adapter to export, if there are several.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="The backbone that wrote the checkpoint.")] = "local",
) -> None:
    """Write a checkpoint's model, with its adapter merged, as a folder that any program can load."""
    from ajet.interfaces.backbone import Backbone
    from ajet.plugins import load_plugins, validated

    built = validated(load_plugins().get("backbone", backbone, "--backbone"), {}, "--backbone")
    assert isinstance(built, Backbone)
    built.export(checkpoint.expanduser(), output.expanduser(), target)
    print(f"wrote {output}")
