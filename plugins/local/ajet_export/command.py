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
    push: Annotated[
        str | None,
        typer.Option(
            metavar="REPO",
            help="Also upload the folder to this repository of the Hugging Face Hub, such as owner/name.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository of --push as a private one.")
    ] = False,
) -> None:
    """Write a checkpoint's model, with its adapter merged, as a folder that any program can load."""
    from ajet import Backbone, ConfigError
    from ajet.plugins import load_plugins, validated
    from ajet_export import hub

    if push is not None:
        hub.check_push(push, "--push")
    elif private:
        raise ConfigError("--private applies only with --push REPO; add --push, or remove --private.")
    built = validated(load_plugins().get(Backbone, backbone, "--backbone"), {}, "--backbone")
    folder = output.expanduser()
    built.export(checkpoint.expanduser(), folder, target)
    print(f"wrote {output}")
    if push is not None:
        print(f"uploaded it to {hub.push(folder, push, private=private)}")
