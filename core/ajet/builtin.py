"""The core's own plugins, registered like anyone's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.algorithm import Algorithm
from ajet.backbone import Backbone
from ajet.engine import ChatModelPlugin
from ajet.filter import Filter
from ajet.hookspecs import hookimpl
from ajet.service import Command, Service

if TYPE_CHECKING:
    from ajet.workflow import Workflow


@hookimpl
def ajet_algorithms() -> Iterable[type[Algorithm]]:
    from ajet.learning import algorithms as a

    return [
        a.GRPO,
        a.DAPO,
        a.DrGRPO,
        a.RLOO,
        a.ReinforcePlusPlus,
        a.GSPO,
        a.CISPO,
        a.SFT,
        a.RejectionSampling,
        a.Distillation,
    ]


@hookimpl
def ajet_filters() -> Iterable[type[Filter]]:
    from ajet.learning.filters import DiscardedAttempts, OverLong, Repetition

    return [DiscardedAttempts, OverLong, Repetition]


@hookimpl
def ajet_backbones() -> Iterable[type[Backbone]]:
    from ajet.debug import Debug

    return [Debug]


@hookimpl
def ajet_chat_models() -> Iterable[type[ChatModelPlugin]]:
    from ajet.chat_models import OpenAIChatModel, ScriptChatModel

    return [OpenAIChatModel, ScriptChatModel]


@hookimpl
def ajet_services() -> Iterable[type[Service]]:
    return [Command]


@hookimpl
def ajet_workflows(workflow: Any, folder: Path) -> Workflow | None:
    if not isinstance(workflow, str) or not workflow.startswith("cmd:"):
        return None
    from ajet.workflow_command import command_workflow

    return command_workflow(workflow, folder)
