"""The id of a run in a tool, kept in the run folder so that a resumed run continues there."""

from __future__ import annotations

import json
from pathlib import Path

from ajet.interfaces.helpers import write_whole

RUN_IDS = "loggers.json"
"""The file: an object with the id for each tool."""


def known_id(run_dir: Path, tool: str) -> str | None:
    """The id under which the run folder was logged before, None for a new run."""
    return _read(run_dir).get(tool)


def keep_id(run_dir: Path, tool: str, run_id: str) -> None:
    """Remember the id of the run."""
    write_whole(run_dir / RUN_IDS, json.dumps({**_read(run_dir), tool: run_id}, indent=2))


def _read(run_dir: Path) -> dict[str, str]:
    try:
        found = json.loads((run_dir / RUN_IDS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return dict(found)
