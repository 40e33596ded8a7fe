"""What comes from elsewhere: programs, commands and files of the earlier AgentJet (`earlier`), and files of Trinity-RFT, which
`ajet_trinity_files` reads."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import hookimpl

if TYPE_CHECKING:
    from ajet import Judge, LoadedWorkflow, Plugin
    from ajet.job.config import Layers


class _FirstNames:
    """Finds the packages `astune` and `astuner`, as the earlier AgentJet was called at first. Python asks it last."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's spec, or None."""
        if name.partition(".")[0] not in ("astune", "astuner"):
            return None
        from ajet_migrate.earlier.modules import find_spec

        return find_spec(name)


sys.meta_path.append(_FirstNames)


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
def ajet_plugins() -> Iterable[type[Plugin]]:
    """What the switches of such a command line start."""
    from ajet_migrate.earlier.services import ENVIRONMENTS, Logview

    return [*ENVIRONMENTS, Logview]
