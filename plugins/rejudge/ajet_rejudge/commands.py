"""``ajet rejudge``: what a wrong judge taught."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.backbones import Judge


def rejudge(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="A run folder, or a folder of runs, whose newest run is judged again."
        ),
    ],
    judge: Judge = None,
    clean: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Also write a new run folder, with which `ajet run --resume FOLDER` goes on from before the first wrong update.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge the recorded episodes of a run anew, and see what the old rewards have taught. No agent runs, and no model is asked.

    Without --judge, the judge of the run's job is asked again, as it is now. Writes rejudged.jsonl into the run folder."""
    import json

    from ajet.backbones import make_progress
    from ajet_rejudge.api import judged_anew
    from ajet_rejudge.report import page

    with make_progress() as progress:
        found = judged_anew(run, judge, progress, clean)
    print(json.dumps(found.as_dict(), default=str) if as_json else page(found))
