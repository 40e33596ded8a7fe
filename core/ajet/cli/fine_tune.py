"""``ajet sft`` and ``ajet dpo``: fine-tuning on transcripts or on pairs of chats, through the trainer that ``ajet run`` uses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import MemoryLimit, Sets
from ajet.job import DEFAULT_BACKBONE


def sft(
    model: Annotated[str, typer.Option(help="Folder or Hugging Face id to start from.")],
    transcripts: Annotated[
        Path,
        typer.Option(
            help='File with one {"messages": […], "tools": […]} per line, or with trajectories in ATIF; or a folder of these.'
        ),
    ],
    output: Annotated[Path, typer.Option(help="New folder for the metrics and the checkpoint.")],
    backbone: Annotated[str, typer.Option(help="The backbone whose trainer to use.")] = DEFAULT_BACKBONE,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the transcripts.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Transcripts per optimizer step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="AdamW learning rate.")] = 1e-5,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the transcripts' order.")] = 0,
    memory_limit: MemoryLimit = None,
    set: Sets = None,
) -> None:
    """Fine-tune a model on transcripts: every assistant turn is learned."""
    given = locals()
    from ajet.reports.progress import make_progress
    from ajet.runs import jobs

    with make_progress() as progress:
        checkpoint = jobs.sft(given, progress)
    print(f"model  {checkpoint}")


def dpo(
    model: Annotated[
        str, typer.Option(help="Folder or Hugging Face id to start from. It is also the reference.")
    ],
    pairs: Annotated[
        Path,
        typer.Option(
            help='File with one {"prompt": […], "chosen": […], "rejected": […], "tools": […]} per line.'
        ),
    ],
    output: Annotated[Path, typer.Option(help="New folder for the metrics and the checkpoint.")],
    backbone: Annotated[str, typer.Option(help="The backbone whose trainer to use.")] = DEFAULT_BACKBONE,
    beta: Annotated[
        float,
        typer.Option(help="How fast a preference saturates; larger values stay closer to the reference."),
    ] = 0.1,
    label_smoothing: Annotated[
        float, typer.Option(help="Share of the pairs that are assumed to be the wrong way round.")
    ] = 0.0,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs per optimizer step.")] = 32,
    learning_rate: Annotated[float, typer.Option(help="AdamW learning rate.")] = 1e-6,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for the pairs' order.")] = 0,
    memory_limit: MemoryLimit = None,
    set: Sets = None,
) -> None:
    """Optimize a model on preferences: chosen answers become likelier than rejected ones."""
    given = locals()
    from ajet.reports.progress import make_progress
    from ajet.runs import jobs

    with make_progress() as progress:
        checkpoint = jobs.dpo(given, progress)
    print(f"model  {checkpoint}")
