"""`--memory-limit`: one flag of all commands that load a model, and where its value goes."""

from __future__ import annotations

import json

import pytest

from ajet_local.backbone import Local, LocalEnginePlugin

from .conftest import Folder

LEARNING = ("--model", "m", "--output", "out")
COMMANDS = {
    "run": ("job.yaml",),
    "check": ("job.yaml",),
    "forecast": ("job.yaml",),
    "eval": ("job.yaml",),
    "sft": (*LEARNING, "--transcripts", "tasks.jsonl"),
    "dpo": (*LEARNING, "--pairs", "tasks.jsonl"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_loads_a_model_takes_a_limit_for_the_local_backbone(
    folder: Folder, command: str
) -> None:
    outcome = folder.ajet(command, *COMMANDS[command], "--memory-limit", "much")
    assert outcome.code == 2, outcome.err
    assert "--memory-limit backbone.local.memory_limit" in outcome.err and "write it like 2GiB" in outcome.err


@pytest.mark.parametrize("command", ["check", "eval"])
def test_a_limit_reaches_the_engine_that_answers_and_set_goes_before_the_flag(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    seen: list[str | None] = []

    def build(self: LocalEnginePlugin, *_: object) -> None:
        seen.append(self.memory_limit)
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalEnginePlugin, "build", build)
    job = ("--workflow", "agent.py:run", "--tasks", "tasks.jsonl", "--judge", "exact", "--model", "m")
    folder.ajet(command, *job, "--memory-limit", "3GiB")
    folder.ajet(command, *job, "--memory-limit", "3GiB", "--set", "backbone.local.memory_limit=2GiB")
    assert seen == ["3GiB", "2GiB"]


@pytest.mark.parametrize("command", ["sft", "dpo"])
def test_a_limit_reaches_the_trainer_of_a_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    seen: list[str | None] = []

    def trainer(self: Local, *_: object, **__: object) -> None:
        seen.append(self.memory_limit)
        raise KeyboardInterrupt

    monkeypatch.setattr(Local, "trainer", trainer)
    answer = {"role": "assistant", "content": "2"}
    folder.write("tasks.jsonl", json.dumps({"messages": [answer], "chosen": "2", "rejected": "3"}))
    folder.ajet(command, *COMMANDS[command], "--memory-limit", "3GiB")
    assert seen == ["3GiB"]


@pytest.mark.parametrize(
    "command", [("eval", "--endpoint", "http://127.0.0.1:9/v1"), ("check", "--answers", "answers.yaml")]
)
def test_a_limit_is_refused_where_no_model_is_loaded(folder: Folder, command: tuple[str, ...]) -> None:
    outcome = folder.ajet(command[0], "job.yaml", *command[1:], "--memory-limit", "2GiB")
    assert outcome.code == 2 and f"{command[1]}: exclude each other" in outcome.err, outcome.err
