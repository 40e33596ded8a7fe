"""AgentJet: make any agent program trainable.

The public API. Names are loaded when first used, so that ``import ajet`` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

_WHERE = {
    "AjetError": "types",
    "Algorithm": "interfaces.algorithm",
    "AnswerStore": "services.answers",
    "Backbone": "job.job",
    "Bisected": "plugin_names",
    "ChatModel": "interfaces.engine",
    "ChatModelPlugin": "interfaces.engine",
    "Check": "api.results",
    "CheckpointSaved": "interfaces.events",
    "ConfigError": "types",
    "ContractBroken": "types",
    "Endpoint": "services.llm_client",
    "EndpointClient": "services.llm_client",
    "EndpointUsage": "services.llm_client",
    "Engine": "interfaces.engine",
    "EnginePlugin": "interfaces.engine",
    "Episode": "api.results",
    "EpisodeEnd": "interfaces.events",
    "EpisodeView": "types",
    "Evaluation": "api.results",
    "Filter": "interfaces.filter",
    "Finding": "types",
    "Forecast": "plugin_names",
    "Group": "api.learner",
    "GroupJudge": "interfaces.judge",
    "Job": "job.job",
    "Judge": "interfaces.judge",
    "JudgeOutput": "types",
    "Learner": "api.learner",
    "LoadedWorkflow": "interfaces.workflow",
    "Logger": "interfaces.logger",
    "Plugin": "interfaces.base",
    "Reader": "interfaces.reader",
    "Recipe": "interfaces.recipe",
    "Rejudged": "plugin_names",
    "Run": "api.results",
    "Runs": "api.results",
    "RunEnd": "interfaces.events",
    "RunStart": "interfaces.events",
    "Scores": "api.results",
    "Selection": "api.selection",
    "Server": "api.serving",
    "Service": "interfaces.service",
    "Settings": "interfaces.base",
    "StepEnd": "interfaces.events",
    "Task": "types",
    "Timeline": "api.results",
    "Trainer": "interfaces.backbone",
    "TunedPrompts": "api.prompts",
    "Tuner": "interfaces.workflow",
    "Unreadable": "services.llm_client",
    "WorkflowOutput": "types",
    "WorkflowPlugin": "interfaces.workflow",
    "abisect": "plugin_names",
    "acheck": "api.jobs",
    "aevaluate": "api.jobs",
    "aforecast": "plugin_names",
    "arejudge": "plugin_names",
    "arun": "api.jobs",
    "aselect_model": "api.selection",
    "atune_prompt": "api.prompts",
    "bisect": "plugin_names",
    "breakpoint": "utils.breakpoints",
    "check": "api.jobs",
    "dpo": "api.jobs",
    "evaluate": "api.jobs",
    "find_recipe": "job.models",
    "forecast": "plugin_names",
    "hookimpl": "hookspecs",
    "label": "capture.context",
    "list_runs": "api.results",
    "load_run": "api.results",
    "model_source": "job.models",
    "open": "api.learner",
    "passthrough": "capture.context",
    "prompt": "interfaces.prompts",
    "rejudge": "plugin_names",
    "run": "api.jobs",
    "select_model": "api.selection",
    "serve": "api.serving",
    "sft": "api.jobs",
    "train_job": "runs.train",
    "tune_prompt": "api.prompts",
}
# Without those of plugins, so that `import *` works where these are not installed.
__all__ = [name for name, where in _WHERE.items() if where != "plugin_names"]

_EARLIER = ("AgentJetJob", "AjetTuner", "BaseJudge", "Workflow", "WorkflowTask", "bp")
"""Names of programs that were written for the earlier AgentJet, from a plugin; `dir` leaves them out."""

if TYPE_CHECKING:
    from ajet.api.jobs import acheck as acheck
    from ajet.api.jobs import aevaluate as aevaluate
    from ajet.api.jobs import arun as arun
    from ajet.api.jobs import check as check
    from ajet.api.jobs import dpo as dpo
    from ajet.api.jobs import evaluate as evaluate
    from ajet.api.jobs import run as run
    from ajet.api.jobs import sft as sft
    from ajet.api.learner import Group as Group
    from ajet.api.learner import Learner as Learner
    from ajet.api.learner import open as open
    from ajet.api.prompts import TunedPrompts as TunedPrompts
    from ajet.api.prompts import atune_prompt as atune_prompt
    from ajet.api.prompts import tune_prompt as tune_prompt
    from ajet.api.results import Check as Check
    from ajet.api.results import Episode as Episode
    from ajet.api.results import Evaluation as Evaluation
    from ajet.api.results import Run as Run
    from ajet.api.results import Runs as Runs
    from ajet.api.results import Scores as Scores
    from ajet.api.results import Timeline as Timeline
    from ajet.api.results import list_runs as list_runs
    from ajet.api.results import load_run as load_run
    from ajet.api.selection import Selection as Selection
    from ajet.api.selection import aselect_model as aselect_model
    from ajet.api.selection import select_model as select_model
    from ajet.api.serving import Server as Server
    from ajet.api.serving import serve as serve
    from ajet.capture.context import label as label
    from ajet.capture.context import passthrough as passthrough
    from ajet.hookspecs import hookimpl as hookimpl
    from ajet.interfaces.algorithm import Algorithm as Algorithm
    from ajet.interfaces.backbone import Trainer as Trainer
    from ajet.interfaces.base import Plugin as Plugin
    from ajet.interfaces.base import Settings as Settings
    from ajet.interfaces.engine import ChatModel as ChatModel
    from ajet.interfaces.engine import ChatModelPlugin as ChatModelPlugin
    from ajet.interfaces.engine import Engine as Engine
    from ajet.interfaces.engine import EnginePlugin as EnginePlugin
    from ajet.interfaces.events import CheckpointSaved as CheckpointSaved
    from ajet.interfaces.events import EpisodeEnd as EpisodeEnd
    from ajet.interfaces.events import RunEnd as RunEnd
    from ajet.interfaces.events import RunStart as RunStart
    from ajet.interfaces.events import StepEnd as StepEnd
    from ajet.interfaces.filter import Filter as Filter
    from ajet.interfaces.judge import GroupJudge as GroupJudge
    from ajet.interfaces.judge import Judge as Judge
    from ajet.interfaces.logger import Logger as Logger
    from ajet.interfaces.prompts import prompt as prompt
    from ajet.interfaces.reader import Reader as Reader
    from ajet.interfaces.recipe import Recipe as Recipe
    from ajet.interfaces.service import Service as Service
    from ajet.interfaces.workflow import LoadedWorkflow as LoadedWorkflow
    from ajet.interfaces.workflow import Tuner as Tuner
    from ajet.interfaces.workflow import WorkflowPlugin as WorkflowPlugin
    from ajet.job.job import Backbone as Backbone
    from ajet.job.job import Job as Job
    from ajet.job.models import find_recipe as find_recipe
    from ajet.job.models import model_source as model_source
    from ajet.plugin_names import AgentJetJob as AgentJetJob
    from ajet.plugin_names import AjetTuner as AjetTuner
    from ajet.plugin_names import BaseJudge as BaseJudge
    from ajet.plugin_names import Bisected as Bisected
    from ajet.plugin_names import Forecast as Forecast
    from ajet.plugin_names import Rejudged as Rejudged
    from ajet.plugin_names import Workflow as Workflow
    from ajet.plugin_names import WorkflowTask as WorkflowTask
    from ajet.plugin_names import abisect as abisect
    from ajet.plugin_names import aforecast as aforecast
    from ajet.plugin_names import arejudge as arejudge
    from ajet.plugin_names import bisect as bisect
    from ajet.plugin_names import forecast as forecast
    from ajet.plugin_names import rejudge as rejudge
    from ajet.runs.train import train_job as train_job
    from ajet.services.answers import AnswerStore as AnswerStore
    from ajet.services.llm_client import Endpoint as Endpoint
    from ajet.services.llm_client import EndpointClient as EndpointClient
    from ajet.services.llm_client import EndpointUsage as EndpointUsage
    from ajet.services.llm_client import Unreadable as Unreadable
    from ajet.types import AjetError as AjetError
    from ajet.types import ConfigError as ConfigError
    from ajet.types import ContractBroken as ContractBroken
    from ajet.types import EpisodeView as EpisodeView
    from ajet.types import Finding as Finding
    from ajet.types import JudgeOutput as JudgeOutput
    from ajet.types import Task as Task
    from ajet.types import WorkflowOutput as WorkflowOutput
    from ajet.utils.breakpoints import breakpoint as breakpoint


def __getattr__(name: str) -> Any:
    where = "plugin_names" if name in _EARLIER else _WHERE.get(name)
    if where is None:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ajet.{where}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_WHERE)


class _PluginModules:
    """Finds modules below `ajet` that plugins bring. Python asks it last, for modules that nothing else finds."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> Any:
        """The module's spec, or None."""
        if not name.startswith("ajet."):
            return None
        from ajet.plugin_names import find_spec

        return find_spec(name)


sys.meta_path.append(_PluginModules)
