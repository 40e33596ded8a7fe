"""Resources servers of NeMo Gym's wheel, which nobody here wrote, with the library's own agents and published rollouts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.environments.libraries import (
    PYTHON,
    Job,
    assert_own_model_is_refused,
    assert_trained,
    needs_library,
)

pytestmark = [needs_library, pytest.mark.models("starter")]

SERVERS = {"mcqa": ("mcqa.yaml", 5), "equivalence_rule": ("lc.yaml", 2)}
"""The configuration of each, and how many of its published rollouts end with a message."""
CALLS = "resources_servers/workplace_assistant/configs/workplace_assistant.yaml"


def published(server: str, file: str) -> list[dict[str, Any]]:
    """Rows of a file of the wheel."""
    code = "import resources_servers; print(next(iter(resources_servers.__path__)))"
    root = subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return [json.loads(line) for line in (Path(root) / server / "data" / file).read_text().splitlines()]


def asked(row: dict[str, Any]) -> str:
    return row["responses_create_params"]["input"][-1]["content"]


@pytest.mark.parametrize("server", SERVERS)
def test_rewards_are_those_of_the_published_rollouts(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, count = SERVERS[server]
    rows, rollouts = published(server, "example.jsonl"), published(server, "example_rollouts.jsonl")
    # The agent's answers of then, each to the question with its last words.
    answers, expected = [], {}
    for number, row in enumerate(rows[:count]):
        rollout = next(each for each in rollouts if asked(each) == asked(row))
        said = rollout["response"]["output"][-1]["content"][0]["text"]
        answers.append({"when": asked(row)[-60:], "say": said})
        expected[str(number)] = rollout["reward"]
    assert len(set(expected.values())) > 1
    options = {"config": f"resources_servers/{server}/configs/{config}"}
    episodes = Job(tmp_path, "nemo_gym", options).check(answers, count)
    assert [episode.failure for episode in episodes] == [None] * count
    assert {episode.task: episode.reward for episode in episodes} == expected


def test_the_librarys_agent_calls_the_tools_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (truth, *_) = published("workplace_assistant", "example.jsonl")[0]["ground_truth"]
    call = {"name": truth["name"], "arguments": json.loads(truth["arguments"])}
    job = Job(tmp_path, "nemo_gym", {"config": CALLS})
    (right,) = job.check([{"turn": 0, "call": call}, {"say": "It is sent."}], 1)
    (idle,) = job.check([{"say": "It is sent."}], 1)
    assert (right.reward, right.calls) == (1.0, 2) and (idle.reward, idle.calls) == (0.0, 1)


def test_the_starter_is_trained_for_two_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"config": "resources_servers/mcqa/configs/mcqa.yaml"}
    assert_trained(Job(tmp_path, "nemo_gym", options).train())


def test_a_server_that_asks_a_model_for_its_reward_needs_a_frozen_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = "resources_servers/over_refusal_detection/configs/over_refusal_detection.yaml"
    (episode,) = Job(tmp_path, "nemo_gym", {"config": config}).check([{"say": "No."}], 1)
    assert episode.failure == "workflow:environment" and "workflow.judge" in episode.error
    assert "\n" not in episode.error and episode.calls == 0


ASKS = """
from judging import judged
from nemo_gym.base_resources_server import BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer
class Asks(SimpleResourcesServer):
    config: BaseResourcesServerConfig
    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=judged(body.response.output[-1].content[-1].text))
"""
AGENT = {
    "entrypoint": "app.py",
    "resources_server": {"type": "resources_servers", "name": "asks"},
    "model_server": {"type": "responses_api_models", "name": "policy_model"},
}


def test_a_server_with_a_model_of_its_own_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    server = {"asks": {"resources_servers": {"asks": {"entrypoint": "app.py", "domain": "other"}}}}
    agent = {"asks_agent": {"responses_api_agents": {"simple_agent": AGENT}}}
    row = {"responses_create_params": {"input": [{"role": "user", "content": "What is 2 + 2?"}]}}
    files = {
        "resources_servers/asks/app.py": ASKS,
        "asks.yaml": json.dumps({**server, **agent}),
        "rows.jsonl": json.dumps(row),
    }
    options = {"config": str(tmp_path / "asks.yaml"), "data": str(tmp_path / "rows.jsonl")}
    assert_own_model_is_refused(tmp_path, "nemo_gym", files, options)
