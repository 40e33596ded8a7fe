"""Episodes whose agents are commands: what their tests share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ajet.capture.process.install import install
from ajet.interfaces.workflow import LoadedWorkflow, make_workflow
from ajet.job.parts import by_command
from ajet.plugins import validated
from ajet.rollout.episode import Episode, Fork, Plan
from ajet.types import Task
from ajet_commands.workflow import CommandWorkflow
from tests.patience import PATIENCE

ASK = """
import json, os, sys, urllib.request
def ask(text):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    return json.load(urllib.request.urlopen(request, timeout=100))["choices"][0]["message"]["content"]
"""


def short(command: str, folder: Path) -> LoadedWorkflow:
    """The workflow of a job that says ``workflow: cmd:…``."""
    return whole(**by_command(f"cmd:{command}", folder))


def whole(**spec: Any) -> LoadedWorkflow:
    """The workflow of a job that says ``workflow: {type: command, …}``. Raises ConfigError."""
    fields = {key: value for key, value in spec.items() if key != "type"}
    return make_workflow(validated(CommandWorkflow, fields, "workflow"), "a command")


def run_command(
    b: Any,
    workflow: LoadedWorkflow,
    *,
    task: Task | None = None,
    judge: Callable[..., Any] = lambda task, output: 1.0,
    timeout: float = PATIENCE,
    fork: Fork | None = None,
) -> Episode:
    """One judged episode of a command on a bench."""

    async def episode() -> Episode:
        with install(b.capture) as around:
            rollout = b.rollout(lambda task, tuner: None, judge, timeout=timeout)
            handles = {"as_base_url": around.gateway.as_base_url}
            runner = replace(rollout.runner, workflow=workflow, handles=handles)
            plans = [Plan("1.0/t/0", "0/0", task or Task("t", "what?"), 0, 0, fork)]
            (done,) = await replace(rollout, runner=runner).run(plans, lambda episode: None)
            return done

    return asyncio.run(episode())
