"""The address at which agents that run on other machines reach their model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ajet
from ajet import ConfigError, Task, Tuner, WorkflowOutput, WorkflowPlugin
from ajet.capture.process.install import install
from ajet.rollout.settings import RolloutSettings
from ajet.testing import ScriptedEngine
from tests.ports import free_port

pytestmark = pytest.mark.models("starter")


class Sandboxed(WorkflowPlugin):
    """Its agents would run in sandboxes elsewhere; here it calls their model."""

    name = "sandboxed"

    @property
    def is_remote(self) -> bool:
        return True

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        from openai import AsyncOpenAI

        base_url, key = tuner.as_base_url()
        ask: Any = [{"role": "user", "content": task.query}]
        answer = await AsyncOpenAI(base_url=base_url, api_key=key).chat.completions.create(
            model="any", messages=ask
        )
        return WorkflowOutput(1.0, [base_url, answer.choices[0].message.content])


def evaluate(tmp_path: Path, **rollout: Any) -> Any:
    (tmp_path / "answers.yaml").write_text("- {say: '4'}\n")
    return ajet.run(
        workflow=Sandboxed(),
        tasks=[{"query": "2 + 2"}],
        backbone="debug",
        run_dir=tmp_path / "run",
        set={
            "backbone.debug.answers": {"type": "script", "path": str(tmp_path / "answers.yaml")},
            **{f"rollout.{key}": value for key, value in rollout.items()},
        },
        progress=False,
    )


def test_a_remote_agent_is_told_the_address_that_the_job_names(tmp_path: Path) -> None:
    port = free_port()
    address = {"port": port, "url": f"http://localhost:{port}"}
    episodes = list(evaluate(tmp_path, gateway_address=address).episodes())
    assert {tuple(episode.response) for episode in episodes} == {(f"http://localhost:{port}/v1", "4")}


def test_a_job_with_remote_agents_that_names_no_address_is_refused_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ConfigError, match=r"rollout.gateway_address: .*Sandboxed.* cannot reach their model.*url: http"
    ):
        evaluate(tmp_path)
    with pytest.raises(ConfigError, match=r"rollout\.gateway_address"):
        evaluate(tmp_path, gateway=True)


def test_the_gateway_listens_where_the_job_says(bench, tokenizer) -> None:
    b = bench(ScriptedEngine(tokenizer, lambda request, prompt: "ok"))
    port = free_port()
    with install(
        b.capture, gateway=True, host="0.0.0.0", port=port, url="https://models.example.org"
    ) as around:
        assert around.gateway.socket and around.gateway.socket.getsockname() == ("0.0.0.0", port)
        tuner = SimpleNamespace(api_key="key")
        assert around.as_base_url(tuner, agent="a").base_url == "https://models.example.org/a/a/v1"


@pytest.mark.parametrize("url", ["example.org", "http://", "https://example.org/", "ftp://example.org"])
def test_a_url_that_clients_could_not_use_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url"):
        RolloutSettings(gateway_address={"url": url})  # type: ignore[arg-type]
