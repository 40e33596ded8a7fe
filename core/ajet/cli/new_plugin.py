"""``ajet plugin new``: writes the package of a new plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Create a plugin.", rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def plugin() -> None:
    pass


@app.command()
def new(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What kind of plugin, see above.")],
    name: Annotated[str, typer.Argument(metavar="NAME", help="Its name in job files: my_judge.")],
    folder: Annotated[
        Path | None, typer.Option(help="Where to write it; default: a new folder ajet-NAME.")
    ] = None,
) -> None:
    """Write an installable package with a plugin and a test that passes.

    Kinds: judge, reader, workflow, logger, filter, algorithm, service, wire, engine and backbone.
    """
    import keyword
    import re

    from ajet.cli.skeletons import KINDS, files
    from ajet.types import ConfigError
    from ajet.utils.new_files import write_new
    from ajet.utils.suggest import nearest

    if kind not in KINDS:
        raise ConfigError(f"{kind}: no such kind of plugin{nearest(kind, KINDS)}. Known: {', '.join(KINDS)}.")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name}: a plugin's name has only lower-case letters, digits and underscores, such as my_{kind}."
        )
    target = folder or Path(f"ajet-{name.replace('_', '-')}")
    write_new(target, files(kind, name))
    article = "an" if kind[0] in "aeiou" else "a"
    print(f"Created {article} {kind} in {target}. Next: pip install pytest -e {target} && pytest {target}")
