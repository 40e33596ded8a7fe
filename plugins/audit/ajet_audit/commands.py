"""``ajet audit``: an independent check of what a run trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def audit(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run folder, or a folder of runs, whose newest run is checked."),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a finished run from its files alone: every sampled token is trained once, or excluded by a rule.

    The exit code is 1 if anything is unexplained."""
    from ajet.reports.folder import find_run
    from ajet_audit.files import Folder
    from ajet_audit.report import as_json, describe
    from ajet_audit.steps import Audit

    outcome = Audit(Folder(find_run(run))).run()
    print(as_json(outcome) if json else describe(outcome))
    if outcome.faults:
        raise typer.Exit(1)
