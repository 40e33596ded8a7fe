"""``ajet rejudge``: what a wrong judge taught. ``ajet bisect``: which checkpoint first does what it must not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ajet.cli.options import Judge


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

    from ajet.reports.progress import make_progress
    from ajet_rejudge.api import judged_anew
    from ajet_rejudge.report import page

    with make_progress() as progress:
        rejudged = judged_anew(run, judge, progress, clean)
    print(json.dumps(rejudged.as_dict(), default=str) if as_json else page(rejudged))


def bisect(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, or a folder of runs, whose newest run is meant."),
    ],
    task: Annotated[
        str,
        typer.Argument(metavar="TASK", help="The id of one of its tasks, or a unique part of it."),
    ],
    judge: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A judge that an episode passes with a reward of 0.5 or more."),
    ] = None,
    must: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A text that must be in an answer.")
    ] = None,
    must_not: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A text that must not be in an answer.")
    ] = None,
    rare: Annotated[
        float, typer.Option(help="A checkpoint passes if at most this share of its episodes fails.")
    ] = 0.1,
    often: Annotated[float, typer.Option(help="It fails if at least this share does.")] = 0.5,
    error: Annotated[
        float, typer.Option(help="The highest probability that one of the verdicts is wrong.")
    ] = 0.05,
    episodes: Annotated[int, typer.Option(metavar="N", help="The most episodes of one checkpoint.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Find the checkpoint of a run that first fails a check on a task, and the episodes that were rewarded for it.

    The check is --judge, --must or --must-not. The checkpoints are bisected: at most log2 of them and 2 are evaluated, each with
    as few episodes as a sequential test needs."""
    import json

    from ajet.reports.progress import make_progress
    from ajet_rejudge.api import bisected_run
    from ajet_rejudge.bisecting import Rates
    from ajet_rejudge.case import check_of
    from ajet_rejudge.report import bisection_page

    with make_progress() as progress:
        check = check_of(judge, must, must_not)
        found = bisected_run(run, task, check, Rates(rare, often, error, episodes), progress)
    print(json.dumps(found.as_dict()) if as_json else bisection_page(found))
