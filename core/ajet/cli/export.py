"""``ajet export``: a checkpoint as a whole model in Hugging Face layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="Checkpoint folder of a run.")],
    output: Annotated[Path, typer.Argument(metavar="OUT", help="The new folder.")],
    target: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose adapter, if the checkpoint holds several.")
    ] = None,
    backbone: Annotated[str, typer.Option(help="What wrote the checkpoint.")] = "local",
) -> None:
    """Write a checkpoint's model, an adapter merged into it, as a folder that any program loads."""
    from ajet.interfaces.backbone import Backbone
    from ajet.plugins import load_plugins, validated

    built = validated(load_plugins().get("backbone", backbone, "--backbone"), {}, "--backbone")
    assert isinstance(built, Backbone)
    built.export(checkpoint.expanduser(), output.expanduser(), target)
    print(f"wrote {output}")
