"""``ajet online``: look at the store of online training, and take from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Train on the feedback of users.", no_args_is_help=True, rich_markup_mode=None)
Where = Annotated[str, typer.Argument(metavar="STORE", help="The store: a file of SQLite, or a URL.")]


@app.callback()
def online() -> None:
    """Train on the feedback of users."""


@app.command("status")
def status_command(
    store: Where, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Count traces by state, and ratings by weight version."""
    import json

    from ajet.cli.table import table
    from ajet_online.store import opened

    with opened(store) as found:
        status, size = found.status(), found.size()
    states = {state.name.lower(): count for state, count in status.states.items()}
    if as_json:
        ratings = {
            str(version): {"rated": n, "reward": mean} for version, (n, mean) in status.ratings.items()
        }
        print(json.dumps({"traces": states, "versions": ratings, "bytes": size}))
        return
    print(table([("TRACES", ""), *((name, f"{count:,}") for name, count in states.items())]))
    if status.ratings:
        rows = [(str(v), f"{n:,}", f"{mean:.3f}") for v, (n, mean) in status.ratings.items()]
        print("\n" + table([("VERSION", "RATED", "REWARD"), *rows]))
    print(f"\n{size / 2**20:,.1f} MiB")


@app.command("export")
def export_command(
    store: Where, output: Annotated[Path, typer.Argument(help="The file to write, one JSON object per line.")]
) -> None:
    """Write all traces, with their tokens and their feedback, to a file."""
    import json

    from ajet.cli.options import check_output
    from ajet.utils.files import writing
    from ajet_online.store import opened
    from ajet_online.trace import to_json

    check_output("OUTPUT", output)
    count = 0
    with opened(store) as found, writing(output), output.open("w", encoding="utf-8") as file:
        for trace in found.all():
            file.write(json.dumps(to_json(trace)) + "\n")
            count += 1
    print(f"{count:,} traces in {output}")


@app.command("prune")
def prune_command(
    store: Where,
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Such as 12h or 90d.")],
) -> None:
    """Delete conversations whose last reply is older, unless a trainer has taken some of it."""
    import re
    import time

    from ajet.types import ConfigError
    from ajet_online.store import opened

    found = re.fullmatch(r"(\d+)([mhd])", older_than)
    if not found:
        raise ConfigError(
            f"--older-than {older_than}: is not an age. Write minutes, hours or days: 30m, 12h, 90d."
        )
    seconds = int(found[1]) * {"m": 60, "h": 3600, "d": 86400}[found[2]]
    with opened(store) as store_:
        print(f"{store_.prune(time.time() - seconds):,} traces deleted")
