"""Import paths of the earlier AgentJet, such as ``from ajet.workflow import WorkflowTask``.

They import, so that a program is refused only for what it uses: a name without a counterpart raises ContractBroken when it is called or
subclassed, with what has taken its place.
"""

from __future__ import annotations

import importlib
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from ajet.types import ContractBroken

_PACKAGES = [
    "backbone",
    "context_tracker",
    "copilot",
    "data_generator",
    "schema",
    "task_judge",
    "task_reader",
    "task_rollout",
    "task_runner",
    "tuner",
    "tuner_lib",
    "workflow",
    "utils.cleaner",
    "utils.compute_madness",
    "utils.config_utils",
    "utils.core_env_vars",
    "utils.dynamic_import",
    "utils.env_service_client",
    "utils.launch_utils",
    "utils.pty",
    "utils.robust_dashscope",
    "utils.sington",
    "utils.smart_daemon",
    "utils.testing_utils",
    "utils.thread_executors",
    "utils.tokenizer",
    "utils.vsdb",
]
"""Modules and packages below ``ajet`` that are not there any more."""
KEPT = {
    "AgentJetJob": "earlier.programs:AgentJetJob",
    "AjetTuner": "earlier.programs:AjetTuner",
    "BaseJudge": "earlier.programs:BaseJudge",
    "Workflow": "earlier.programs:Workflow",
    "WorkflowOutput": "types:WorkflowOutput",
    "WorkflowTask": "earlier.programs:WorkflowTask",
    "bp": "utils.breakpoints:breakpoint",
    "vscode_conditional_breakpoint": "utils.breakpoints:breakpoint",
}
"""Names that still have an object, wherever they are imported from."""
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
    """The spec of an earlier module, which is a package too, as all of its names may be modules; None for any other."""
    below = name.removeprefix("ajet.")
    known = any(below == one or below.startswith(f"{one}.") for one in _PACKAGES)
    return ModuleSpec(name, _Loader(), is_package=True) if known else None


class _Loader(Loader):
    """Fills an earlier module: with no names, and a function that finds each when it is asked for."""

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual module."""

    def exec_module(self, module: ModuleType) -> None:
        """Add what answers for the names."""

        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return kept(name) if name in KEPT else _Gone(f"{module.__name__}.{name}", name)

        module.__dict__["__getattr__"] = find


def kept(name: str) -> Any:
    """The object of a name in `KEPT`."""
    where, _, attribute = KEPT[name].partition(":")
    return getattr(importlib.import_module(f"ajet.{where}"), attribute)


class _Gone:
    """Stands for a function or class that is not there any more."""

    def __init__(self, path: str, name: str) -> None:
        remedy = _GONE.get(name, "It has no counterpart; `ajet docs coming-from` lists what has.")
        self._told = f"{path} is of the earlier AgentJet. {remedy}"

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise ContractBroken(self._told)

    def __mro_entries__(self, _: Any) -> NoReturn:
        raise ContractBroken(self._told)
