"""What comes from elsewhere: programs, commands and files of the earlier AgentJet (`earlier`), and files of Trinity-RFT, which
`ajet_trinity_files` reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import ConfigError, hookimpl

if TYPE_CHECKING:
    from ajet import Judge, LoadedWorkflow
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
    """The job that explorer.yaml or trainer.yaml of Trinity-RFT says; its keys without effect are printed. The error for another
    file names the command which prints its job."""
    from ajet.utils.terminal import tell
    from ajet_migrate.earlier.job_file import refuse_earlier
    from ajet_trinity_files.files import ONLINE, trinity_file
    from ajet_trinity_files.keys import is_trinity

    refuse_earlier(path, values)
    if not is_trinity(values):
        return None
    if values.get("mode") not in ONLINE:
        raise ConfigError(
            f"{path}: is a configuration of Trinity-RFT. Its job file is printed by: ajet config from-trinity {path}"
        )
    parsed = trinity_file(path)
    assert parsed is not None
    for line in parsed.warnings():
        tell(line)
    return parsed.full_layers()


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
