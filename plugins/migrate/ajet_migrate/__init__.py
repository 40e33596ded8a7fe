"""What comes from elsewhere: programs, commands and files of the earlier AgentJet (`earlier`), and files of Trinity-RFT, which
`ajet_trinity_files` reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Judge, LoadedWorkflow
    from ajet.backbones import Layers


@hookimpl
def ajet_job_file(path: Path, values: Mapping[str, Any]) -> Layers | None:
    """See `job_files`."""
    from ajet_migrate.job_files import layers_of

    return layers_of(path, values)


@hookimpl
def ajet_workflows(workflow: Any) -> LoadedWorkflow | None:
    """Classes of the earlier AgentJet."""
    from ajet_migrate.earlier.programs import workflow_of

    return workflow_of(workflow)


@hookimpl
def ajet_as_judge(judge: Any) -> Judge | None:
    """Classes of the earlier AgentJet."""
    from ajet_migrate.earlier.programs import judge_of

    return judge_of(judge)


@hookimpl
def ajet_command_line(arguments: Sequence[str]) -> None:
    """Command lines of the earlier AgentJet."""
    from ajet_migrate.earlier.command_line import refuse_earlier

    refuse_earlier(arguments)
