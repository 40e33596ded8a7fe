"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

JobFile = Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job file; flags override it.")]
Workflow = Annotated[str | None, typer.Option(help="The agent: pkg.module:Name or path/to/file.py:Name.")]
Tasks = Annotated[Path | None, typer.Option(help="Tasks, one JSON object per line (.jsonl, .jsonl.gz).")]
Validation = Annotated[Path | None, typer.Option(help="Validation tasks, in the same format.")]
JudgeName = Annotated[
    str | None, typer.Option("--judge", help="A judge by name, or a function pkg.module:name.")
]
Seed = Annotated[int | None, typer.Option(help="Random seed for task order, sampling and recipes.")]
With = Annotated[
    list[str] | None,
    typer.Option(
        "--with",
        metavar="NAME",
        help="Start a service that the job declares, unless it is running. Repeatable.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the job: a.b.c=value. Repeatable."),
]


def flag(name: str) -> str:
    """An argument as it is written on the command line."""
    return "--[no-]deterministic" if name == "deterministic" else f"--{name.replace('_', '-')}"
