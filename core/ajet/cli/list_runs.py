"""``ajet list``: the runs of a folder, a line for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="RUNS", help="A folder of runs.")] = Path("runs"),
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only runs with this text in their name or folder.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", metavar="TAG", help="Only runs with this tag. Repeatable.")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also checks, forecasts, evaluations and runs of the backbone debug."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the same data as a JSON list.")] = False,
) -> None:
    """List the runs of a folder, the newest first, with their settings and rewards."""
    import json
    from dataclasses import asdict

    from ajet.reports.run_list import describe_runs, list_runs

    lines = list_runs(folder, name=name, tags=tags or (), everything=everything)
    if as_json:
        print(json.dumps([{**asdict(line), "kind": line.kind} for line in lines]))
    else:
        print(
            describe_runs(lines)
            if lines
            else f"no such runs in {folder}; --all lists checks, forecasts and evaluations, too"
        )
