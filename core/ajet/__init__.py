"""AgentJet: make any agent program trainable.

The public API. Names are loaded when first used, so that ``import ajet`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_WHERE = {
    "AjetError": "types",
    "Algorithm": "algorithm",
    "Backbone": "backbone",
    "ChatModel": "engine",
    "ChatModelPlugin": "engine",
    "ConfigError": "types",
    "Engine": "engine",
    "EnginePlugin": "engine",
    "EpisodeView": "types",
    "Filter": "filter",
    "Finding": "types",
    "GroupJudge": "judge",
    "Judge": "judge",
    "JudgeOutput": "types",
    "Logger": "logger",
    "Plugin": "base",
    "Reader": "reader",
    "Recipe": "recipe",
    "Service": "service",
    "Settings": "base",
    "Task": "types",
    "Trainer": "backbone",
    "Tuner": "workflow",
    "Workflow": "workflow",
    "WorkflowOutput": "types",
    "breakpoint": "breakpoints",
    "hookimpl": "hookspecs",
    "label": "capture.context",
    "passthrough": "capture.context",
}
__all__ = list(_WHERE)

if TYPE_CHECKING:
    from ajet.algorithm import Algorithm as Algorithm
    from ajet.backbone import Backbone as Backbone
    from ajet.backbone import Trainer as Trainer
    from ajet.base import Plugin as Plugin
    from ajet.base import Settings as Settings
    from ajet.breakpoints import breakpoint as breakpoint
    from ajet.capture.context import label as label
    from ajet.capture.context import passthrough as passthrough
    from ajet.engine import ChatModel as ChatModel
    from ajet.engine import ChatModelPlugin as ChatModelPlugin
    from ajet.engine import Engine as Engine
    from ajet.engine import EnginePlugin as EnginePlugin
    from ajet.filter import Filter as Filter
    from ajet.hookspecs import hookimpl as hookimpl
    from ajet.judge import GroupJudge as GroupJudge
    from ajet.judge import Judge as Judge
    from ajet.logger import Logger as Logger
    from ajet.reader import Reader as Reader
    from ajet.recipe import Recipe as Recipe
    from ajet.service import Service as Service
    from ajet.types import AjetError as AjetError
    from ajet.types import ConfigError as ConfigError
    from ajet.types import EpisodeView as EpisodeView
    from ajet.types import Finding as Finding
    from ajet.types import JudgeOutput as JudgeOutput
    from ajet.types import Task as Task
    from ajet.types import WorkflowOutput as WorkflowOutput
    from ajet.workflow import Tuner as Tuner
    from ajet.workflow import Workflow as Workflow


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'ajet' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"ajet.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
