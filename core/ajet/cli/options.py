"""Options that several commands share; those of the job's keys are rows of `ajet.job.arguments`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ajet.job.arguments import ARGUMENTS, Argument


def option(name: str, table: Mapping[str, Argument] = ARGUMENTS, *, flag: str | None = None) -> Any:
    """The option of an argument; ``flag``: if it is named otherwise."""
    return typer.Option(*filter(None, [flag]), help=table[name].help, metavar=table[name].metavar)


JobFile = Annotated[Path | None, typer.Argument(metavar="JOB.yaml", help="The job file; flags override it.")]
Workflow = Annotated[str | None, option("workflow")]
Tasks = Annotated[Path | None, option("tasks")]
Validation = Annotated[Path | None, option("validation")]
Judge = Annotated[str | None, option("judge")]
Model = Annotated[str | None, option("model")]
Backbone = Annotated[str | None, option("backbone")]
Episodes = Annotated[int | None, option("episodes")]
Answers = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Answers to use instead of the model's: a YAML list of rules with `say` or `call`, and `turn`, the "
        "number of the call in its episode, from 0.",
    ),
]
Seed = Annotated[int | None, option("seed")]
MemoryLimit = Annotated[str | None, option("memory_limit")]
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
_UNLIKE = {"deterministic": "--[no-]deterministic", "services": "--with", "tags": "--tag"}


def with_options(where: str) -> str:
    """``where`` of an error, with options in place of arguments: ``--resume ./run`` for ``resume= ./run``."""

    def option_of(match: re.Match[str]) -> str:
        return _UNLIKE.get(match[1], f"--{match[1].replace('_', '-')}")

    return re.sub(r"(?:^|(?<= and )|(?<= or )|(?<= with ))(\w+)=(?=$|[ :])", option_of, where)
