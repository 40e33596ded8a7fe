"""A workflow of Trinity over a stub of its model wrapper: the classes of tasks and experiences are Trinity's own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trinity", reason="Trinity is not installed: make test-trinity")

from trinity.common.experience import Experience, gather_action_masks
from trinity.common.workflows import WORKFLOWS, Task

from ajet.types import ConfigError
from ajet_trinity.remote import workflow
from tests.plugins.trinity.test_served import job_file, server, tokenizer  # noqa: F401

NAME = "ajet_trinity.remote.workflow.AgentWorkflow"


class ModelWrapper:
    """What the workflow uses of Trinity's `ModelWrapper`, which needs vLLM to be imported."""

    api_key = "key"

    def __init__(self, url: str, folder: Path, temperature: float = 1.0) -> None:
        self.api_address: str | None = None
        self.model_path = str(folder)
        self.config = SimpleNamespace(temperature=temperature, max_model_len=160)
        self._url = url

    async def prepare(self) -> None:
        self.api_address = self._url

    @property
    async def model_version_async(self) -> int:
        return 5


def task_of(job: Path | None) -> Task:
    return Task(
        workflow=WORKFLOWS.get(NAME),
        repeat_times=2,
        raw_task={"question": "1 + 2", "answer": "0.5"},
        workflow_args={"job": str(job)} if job else {},
        batch_id=3,
        task_id=4,
    )


async def experiences_of(task: Task, model: Any, repeats: int, first: int) -> list[Experience]:
    running = task.to_workflow(model)
    running.set_repeat_times(repeats, first)
    try:
        return await running.run_async()
    finally:
        for agent in workflow._agents.values():
            await agent.close()
        workflow._agents.clear()


def test_each_timeline_of_a_group_is_an_experience(server: Any, job_file: Path, model: Path) -> None:  # noqa: F811
    wrapper = ModelWrapper(server.url_for(""), model)
    found = asyncio.run(experiences_of(task_of(job_file), wrapper, repeats=2, first=6))
    assert [(e.eid.run, e.eid.step, e.reward) for e in found] == [(6, 0, 0.5), (7, 0, 0.5)]
    for experience in found:
        answered = experience.tokens[experience.prompt_length :]
        assert answered[experience.action_mask].tolist() == server.ids * 2
        assert experience.logprobs[experience.action_mask].tolist() == [-0.5] * len(server.ids) * 2
        assert not experience.logprobs[~experience.action_mask].any()
        assert not experience.action_mask.all()  # the question between the calls
    masks = gather_action_masks(found, max(len(e.action_mask) for e in found))
    assert masks.sum() == 4 * len(server.ids)
    again = Experience.deserialize_many(Experience.serialize_many(found))
    assert [e.tokens.tolist() for e in again] == [e.tokens.tolist() for e in found]


def test_trinity_finds_the_workflow_by_its_path_and_may_repeat_it() -> None:
    found = WORKFLOWS.get(NAME)
    assert found.can_repeat and found.is_async


def test_another_temperature_than_trinitys_is_refused(server: Any, job_file: Path, model: Path) -> None:  # noqa: F811
    wrapper = ModelWrapper(server.url_for(""), model, temperature=0.6)
    with pytest.raises(
        ConfigError, match=r"rollout\.sampling\.temperature is 1, but .*model\.temperature \(0\.6\)"
    ):
        asyncio.run(experiences_of(task_of(job_file), wrapper, repeats=1, first=0))


def test_a_task_without_a_job_is_an_error(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"workflow_args\.job: is missing"):
        task_of(None).to_workflow(ModelWrapper("http://127.0.0.1", model))
