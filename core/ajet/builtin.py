"""The core's own plugins, registered like anyone's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.hookspecs import hookimpl
from ajet.interfaces.algorithm import Algorithm
from ajet.interfaces.backbone import Backbone
from ajet.interfaces.engine import ChatModelPlugin
from ajet.interfaces.filter import Filter
from ajet.interfaces.service import Command, Service

if TYPE_CHECKING:
    from ajet.interfaces.workflow import Workflow


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
    from ajet.runs.debug import Debug

    return [Debug]


@hookimpl
def ajet_chat_models() -> Iterable[type[ChatModelPlugin]]:
    from ajet.services.chat_models import OpenAIChatModel, ScriptChatModel

    return [OpenAIChatModel, ScriptChatModel]


@hookimpl
def ajet_services() -> Iterable[type[Service]]:
    return [Command]


@hookimpl
def ajet_workflows(workflow: Any, folder: Path) -> Workflow | None:
    if not isinstance(workflow, str) or not workflow.startswith("cmd:"):
        return None
    from ajet.services.command_workflow import command_workflow

    return command_workflow(workflow, folder)
