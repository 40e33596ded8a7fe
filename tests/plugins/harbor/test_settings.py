"""What the workflow and the judge `harbor` refuse before a sandbox is started, and how they connect agents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet.interfaces.workflow import EpisodeEndpoint, WorkflowFailed
from ajet_harbor import HarborJudge, HarborWorkflow
from ajet_harbor.connection import agent_settings, default_model
from ajet_harbor.workflow import check_network
from tests.plugins.harbor.conftest import TASKS

ENDPOINT = EpisodeEndpoint("http://127.0.0.1:8900/v1", "the-key")


@pytest.mark.parametrize(
    "agent, model, url, key",
    [
        ("mini-swe-agent", "openai/policy", "http://127.0.0.1:8900/v1", "OPENAI_API_KEY"),
        ("codex", "openai/policy", "http://127.0.0.1:8900/v1", "OPENAI_API_KEY"),
        ("terminus-2", "openai/policy", "http://127.0.0.1:8900/v1", "OPENAI_API_KEY"),
        ("claude-code", "anthropic/policy", "http://127.0.0.1:8900", "ANTHROPIC_API_KEY"),
        ("gemini-cli", "gemini/policy", "http://127.0.0.1:8900", "GEMINI_API_KEY"),
        ("goose", "openai/policy", "http://127.0.0.1:8900", "OPENAI_API_KEY"),
    ],
)
def test_each_agent_gets_address_and_key_as_its_client_wants_them(
    agent: str, model: str, url: str, key: str
) -> None:
    assert default_model(agent) == model
    settings = agent_settings(agent, model, ENDPOINT)
    assert (settings["model_name"], settings["base_url"], settings["env"][key]) == (model, url, "the-key")


def test_an_agent_that_harbor_cannot_connect_finds_the_model_in_variables() -> None:
    settings = agent_settings("acp", "openai/policy", ENDPOINT)
    assert "base_url" not in settings and settings["env"]["OPENAI_BASE_URL"] == ENDPOINT.base_url


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"agent": "mini-swe"}, "agent 'mini-swe' is none of Harbor's.*mini-swe-agent"),
        ({"agent": "oracle", "environment": "cellar"}, "environment 'cellar' is none of Harbor's: docker, "),
        ({"agent": "codex", "model": "mistral/large"}, "model 'mistral/large' must begin with"),
        (
            {"agent": "codex", "trial": {"agent": {"base_url": "http://example.org"}}},
            "trial.agent.base_url is set by the workflow",
        ),
        ({"agent": "codex", "trial": {"agent": {"override_timeout_sec": "long"}}}, "override_timeout_sec"),
        ({"agent": "codex", "network": "bridge"}, "network"),
    ],
)
def test_what_harbor_does_not_have_is_refused_when_the_job_is_checked(
    fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        HarborWorkflow.model_validate({"environment": "podman", **fields})


@pytest.mark.parametrize(
    "fields, remote",
    [
        ({"environment": "podman"}, False),
        ({"environment": "docker"}, False),
        ({"environment": "podman", "network": "own"}, True),
        ({"environment": "daytona"}, True),
        ({"environment": "daytona", "agent": "oracle"}, False),
    ],
)
def test_agents_that_do_not_share_this_machines_network_need_an_address(
    fields: dict[str, Any], remote: bool
) -> None:
    assert HarborWorkflow.model_validate({"agent": "codex", **fields}).is_remote == remote


def test_a_job_whose_episodes_end_before_their_agents_may_is_refused() -> None:
    workflow = HarborWorkflow(agent="codex", trial={"agent": {"override_timeout_sec": 600}})
    assert workflow.seconds == 600 and HarborWorkflow(agent="codex").seconds is None


@pytest.mark.parametrize(
    "trial, seconds",
    [
        ({}, 900),
        ({"agent": {"override_timeout_sec": 60}}, 60),
        ({"agent": {"max_timeout_sec": 300}, "timeout_multiplier": 2}, 600),
    ],
)
def test_a_task_says_how_long_its_agent_may_work(trial: dict[str, Any], seconds: float) -> None:
    workflow = HarborWorkflow(agent="codex", trial=trial)
    assert workflow.seconds_of(Task("t", metadata={"agent_seconds": 900})) == seconds
    assert workflow.seconds_of(Task("t")) == (60 if "override_timeout_sec" in str(trial) else None)


def test_a_task_that_limits_its_network_does_not_get_that_of_this_machine(tmp_path: Path) -> None:
    from harbor import TaskConfig

    closed = TaskConfig.model_validate_toml('[environment]\nnetwork_mode = "no-network"\n')
    with pytest.raises(
        WorkflowFailed, match=r"task t allows its sandbox the network 'no-network'.*network: own"
    ):
        check_network(Task("t"), closed)
    check_network(Task("t"), TaskConfig.model_validate_toml((TASKS / "words/task.toml").read_text()))


def judged(rewards: Any, **settings: Any) -> JudgeOutput:
    output = WorkflowOutput(
        response={"trial": "/trials/t", "rewards": rewards}, metrics={"seconds_verifier": 2.0}
    )
    view = EpisodeView("1.0/t/0", "t", 0, 0)
    return asyncio.run(HarborJudge(**settings).judge(Task("t"), output, view))


def test_the_verifiers_reward_is_the_episodes_and_its_parts_are_metrics() -> None:
    assert judged({"reward": 1.0}) == JudgeOutput(1.0, True, {"seconds_verifier": 2.0})
    assert judged({"reward": 0.5, "tests": 3.0}).metrics["tests"] == 3.0
    assert judged({"tests": 0.25}).reward == 0.25


def test_several_rewards_are_weighed_as_the_job_says() -> None:
    found = judged(
        {"complete": 1.0, "ordered": 0.0}, weights={"complete": 0.25, "ordered": 0.75}, success=0.25
    )
    assert (found.reward, found.is_success, found.metrics["complete"]) == (0.25, True, 1.0)
    with pytest.raises(WorkflowFailed, match="no 'reward', but 'complete', 'ordered'; say what counts"):
        judged({"complete": 1.0, "ordered": 0.0})


def test_an_episode_of_another_workflow_has_no_trial_to_judge() -> None:
    with pytest.raises(WorkflowFailed, match="results of the workflow harbor"):
        asyncio.run(
            HarborJudge().judge(Task("t"), WorkflowOutput(response="42"), EpisodeView("1.0/t/0", "t", 0, 0))
        )
