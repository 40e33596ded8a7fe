"""Harbor's agents in training: whole steps of `ajet run`, on a model of a few thousand weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import load_run
from ajet.cli import run_program
from tests.patience import PATIENCE
from tests.plugins.harbor.conftest import Left
from tests.tiny import save_tiny_model

CHANCE = """#!/bin/bash
# The agent of a random model does nothing, so its reward is drawn.
echo 0.$RANDOM > /logs/verifier/reward.txt
"""
AGENTS: dict[str, dict[str, Any]] = {
    # It asks until it is told to stop: after some calls its time is over.
    "mini-swe-agent": {"kwargs": {"skip_install": True}, "override_timeout_sec": 45},
    "claude-code": {
        "kwargs": {"disallowed_tools": "WebSearch,WebFetch"},
        "override_timeout_sec": 2 * PATIENCE,
    },
}


@pytest.mark.parametrize("agent", AGENTS)
def test_two_steps_are_trained_on_what_an_agent_did_in_its_sandbox(
    agent: str, tasks: Path, tokenizer: Any, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tasks.parent)
    (tasks / "total/tests/test.sh").write_text(CHANCE)
    job = {
        "task": {"reader": {"type": "harbor", "path": "tasks/total"}},
        "workflow": {
            "type": "harbor",
            "environment": "podman",
            "agent": agent,
            "trial": {"agent": AGENTS[agent]},
        },
        "judge": "harbor",
        "model": str(save_tiny_model(tasks.parent / "model", tokenizer, context=1 << 16)),
        "rollout": {
            "group_size": 2,
            "concurrency": 2,
            "retries": 0,
            "timeout": 6 * PATIENCE,
            "stall_warning": "30m",
        },
        "train": {"steps": 2, "batch_size": 1, "learning_rate": 1e-3},
    }
    job["rollout"]["sampling"] = {"max_tokens": 16}
    Path("job.yaml").write_text(yaml.safe_dump(job))
    assert run_program(["run", "job.yaml"]) == 0
    (folder,) = Path("runs").resolve().iterdir()
    run = load_run(folder)
    episodes = [episode for episode in run.episodes() if episode.phase == "train"]
    assert [episode.failure for episode in episodes] == [None] * 4
    assert all(episode.calls for episode in episodes)
    assert {Path(episode.response["trial"]).parent for episode in episodes} == {folder / "trials"}
    assert [step["grad_norm"] > 0 for step in run.metrics] == [True, True]
