"""``ajet config from-openai``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def from_openai(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="JOB.json", help="The body of POST /v1/fine_tuning/jobs, or what GET returns for a job."
        ),
    ],
    model: Annotated[
        str, typer.Option(help="Folder or Hugging Face id of the model to train in place of OpenAI's.")
    ],
    output: Annotated[Path, typer.Option(help="New folder for the job.")],
    training_file: Annotated[
        Path | None, typer.Option(help="The training file, if JOB.json names its id at OpenAI.")
    ] = None,
    validation_file: Annotated[Path | None, typer.Option(help="The validation file, likewise.")] = None,
) -> None:
    """Write the job that says the same as a fine-tuning job of OpenAI. Says what becomes of each key, and the command that trains."""
    from ajet_openai_jobs.convert import convert

    made = convert(file, model, output, training_file, validation_file)
    for line in made.notes:
        print(line)
    print(f"train with:\n  {made.command}")
