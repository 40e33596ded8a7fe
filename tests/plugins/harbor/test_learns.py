"""Harbor's agents in training: whole steps of `ajet run`, with the model of random weights of the coding agents' recipes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import load_run
from ajet.cli import run_program
from tests.patience import PATIENCE
from tests.plugins.harbor.conftest import Left
from tests.plugins.harbor.test_trials import verified

MODEL = f"{Path(__file__).parents[3]}/examples/coding_agents/shared/untrained.py:Untrained"
CHANCE = """#!/bin/bash
# The agent of a random model does nothing, so its reward is drawn.
echo 0.$RANDOM > /logs/verifier/reward.txt
"""
AGENTS: dict[str, dict[str, Any]] = {
    # A random model does not tell it to stop.
    "mini-swe-agent": {
        "kwargs": {"skip_install": True},
        "env": {"MSWEA_GLOBAL_CALL_LIMIT": "3", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"},
    },
    # What it asks for is more than the job's limit, and a random model does not end by itself.
    "claude-code": {
        "kwargs": {"disallowed_tools": "WebSearch,WebFetch"},
        "env": {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "16"},
    },
}


@pytest.mark.models(MODEL)
@pytest.mark.parametrize("agent", AGENTS)
def test_two_steps_are_trained_on_what_an_agent_did_in_its_sandbox(
    agent: str, tasks: Path, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    for file in tasks.glob("*/tests/test.sh"):
        file.write_text(CHANCE)
    job = {
        "task": {"reader": {"type": "harbor", "path": "tasks"}},
        "workflow": {
            "type": "harbor",
            "environment": "podman",
            "agent": agent,
            "trial": {"agent": {"override_timeout_sec": 4 * PATIENCE, **AGENTS[agent]}},
        },
        "judge": "harbor",
        "model": MODEL,
        "rollout": {
            "group_size": 2,
            "concurrency": 2,
            "retries": 0,
            "timeout": 6 * PATIENCE,
            "stall_warning": "30m",
            "sampling": {"max_tokens": 16},
        },
        "train": {"steps": 2, "batch_size": 2, "learning_rate": 1e-3},
    }
    Path("job.yaml").write_text(yaml.safe_dump(job))
    assert run_program(["run", "job.yaml"]) == 0
    (folder,) = Path("runs").resolve().iterdir()
    run = load_run(folder)
    episodes = [episode for episode in run.episodes() if episode.phase == "train"]
    assert [episode.failure for episode in episodes] == [None] * 8
    assert {episode.task for episode in episodes} == {"ajet/greeting", "ajet/total", "ajet/words"}
    assert all(episode.calls for episode in episodes)
    assert [episode.reward for episode in episodes] == [verified(episode)["reward"] for episode in episodes]
    assert {Path(episode.response["trial"]).parent for episode in episodes} == {folder / "trials"}
    assert [step["grad_norm"] > 0 for step in run.metrics] == [True, True]
    assert run_program(["audit", str(folder)]) == 0
