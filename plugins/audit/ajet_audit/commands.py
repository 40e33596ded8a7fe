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
) -> None:
    """Check a finished run from its files alone: every sampled token is trained once, or excluded by a rule.

    The last line is one JSON object. The exit code is 1 if anything is unexplained."""
    from ajet.backbones import find_run
    from ajet_audit.files import Folder
    from ajet_audit.report import as_json, describe
    from ajet_audit.steps import Audit

    found = Audit(Folder(find_run(run))).run()
    print(describe(found))
    print(as_json(found))
    if found.faults:
        raise typer.Exit(1)
