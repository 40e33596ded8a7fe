"""Import paths of the earlier AgentJet, such as ``from ajet.workflow import WorkflowTask``.

They import, so that a program is refused only for what it uses: a name without a counterpart raises ContractBroken when it is called or
subclassed, with what has taken its place.
"""

from __future__ import annotations

from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import ajet
from ajet import ContractBroken

_KEPT = ("AgentJetJob", "AjetTuner", "BaseJudge", "Workflow", "WorkflowOutput", "WorkflowTask", "bp")
"""Names of `ajet`, wherever they are imported from."""
_RENAMED = {"AstunerJob": "AgentJetJob", "ModelTuner": "AjetTuner", "vscode_conditional_breakpoint": "bp"}
_GONE = {
    "AutoGraderJudge": "Set judge: {type: rubric, path: rubric.yaml}; `ajet judge learn` writes the file.",
    "BaseTaskReader": "Write a subclass of ajet.Reader, whose tasks() yields ajet.Task (`ajet docs plugins`).",
    "DataGeneratorTaskReader": "Set task.reader: {type: generated}, or run `ajet data generate`.",
    "EnvServiceJudge": "Set judge: environment.",
    "RobustDashScopeChatModel": "Use a model of your framework, such as agentscope.model.DashScopeChatModel; calls inside "
    "`with ajet.passthrough():` go to its own endpoint.",
    "RouterTaskReader": "Name a reader in the job: task.reader (`ajet docs readers`).",
    "Task": "Write ajet.Task(id=…, query=…, messages=(…), metadata={…}).",
    "TracingReader": "Set task.reader: {type: traces}.",
    "create_external_llm_fn": "Ask with the OpenAI SDK, or set judge: {type: math_llm, endpoint: {base_url: …, model: …}} or llm.",
    "read_ajet_config": "Use `ajet config explain KEY JOB.yaml`, or ajet.run(job, set={…}).",
}


def find_spec(name: str) -> ModuleSpec | None:
    """The spec of an earlier module, which is a package too, as all of its names may be modules."""
    if name == "ajet.launcher":
        return spec_from_file_location(name, Path(__file__).with_name("launcher.py"))
    return ModuleSpec(name, _Loader(), is_package=True)


class _Loader(Loader):
    """Fills an earlier module: with no names, and a function that finds each when it is asked for."""

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual module."""

    def exec_module(self, module: ModuleType) -> None:
        """Add what answers for the names."""

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            name = _RENAMED.get(name, name)
            return getattr(ajet, name) if name in _KEPT else _Gone(f"{module.__name__}.{name}", name)

        module.__dict__["__getattr__"] = find


class _Gone:
    """Stands for a function or class that is not there any more."""

    def __init__(self, path: str, name: str) -> None:
        remedy = _GONE.get(name, "It has no counterpart; `ajet docs coming-from` lists what has.")
        self._told = f"{path} is of the earlier AgentJet. {remedy}"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise ContractBroken(self._told)

    def __mro_entries__(self, _: Any) -> NoReturn:
        raise ContractBroken(self._told)
