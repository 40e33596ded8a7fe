"""Harbor's tasks, agents and sandboxes: the reader, the workflow and the judge `harbor`.

Importing this package does not import Harbor; its modules do when a job is checked.
"""

from __future__ import annotations

from collections.abc import Iterable

from ajet import Finding, Plugin, hookimpl
from ajet.interfaces.events import RunEnd, RunStart
from ajet_harbor import trials
from ajet_harbor.judge import HarborJudge
from ajet_harbor.reader import HarborTasks
from ajet_harbor.versions import INSTALL, installed
from ajet_harbor.workflow import HarborWorkflow

__all__ = ["HarborJudge", "HarborTasks", "HarborWorkflow"]


@hookimpl
def ajet_plugins() -> Iterable[type[Plugin]]:
    return [HarborTasks, HarborWorkflow, HarborJudge]


@hookimpl
def ajet_doctor() -> Iterable[Finding]:
    """Which version of Harbor runs the trials."""
    version = installed()
    if version is None:
        return [Finding("workflow harbor", "Harbor is not installed", INSTALL, optional=True)]
    return [Finding("workflow harbor", f"Harbor {version}")]


@hookimpl
def ajet_run_start(event: RunStart) -> None:
    trials.run_dir = event.run_dir


@hookimpl
def ajet_run_end(event: RunEnd) -> None:
    trials.run_dir = None
