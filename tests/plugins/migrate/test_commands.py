"""`ajet config from-trinity`."""

from __future__ import annotations

import yaml

from tests.cli.conftest import Folder

TRINITY = """
project: p
name: n
model: {model_path: starter, max_response_tokens: 8}
algorithm: {algorithm_type: multi_step_grpo, repeat_times: 2, optimizer: {lr: 1e-4}}
buffer:
  batch_size: 2
  explorer_input:
    taskset: {path: tasks.jsonl, format: {prompt_key: query, response_key: answer}}
cluster: {gpu_per_node: 8}
"""


def test_a_file_of_trinity_becomes_a_job_that_runs(folder: Folder) -> None:
    folder.write("trinity.yaml", TRINITY)
    outcome = folder.ajet("config", "from-trinity", "trinity.yaml")
    assert "trinity.yaml: no effect of cluster.gpu_per_node: the backbone chooses its engines" in outcome.err
    job = yaml.safe_load(outcome.out)
    assert job["train"] == {
        "algorithm": {"type": "grpo"},
        "learning_rate": 1e-4,
        "batch_size": 2,
        "weight_decay": 0.01,
        "kl": 0.001,
        "steps": 1,
    }
    own = {"workflow": "agent.py:run", "judge": "exact"}
    backbone = {
        "name": "debug",
        "debug": {"answers": {"type": "script", "path": "script.yaml"}, "group_size": 1},
    }
    folder.write("made.yaml", yaml.safe_dump({**job, **own, "backbone": backbone}))
    assert folder.ajet("run", "made.yaml").code == 0


def test_only_a_file_of_trinity_becomes_a_job(folder: Folder) -> None:
    outcome = folder.ajet("config", "from-trinity", "job.yaml")
    assert outcome.code == 2
    assert outcome.err.startswith("error: job.yaml: is not a configuration of Trinity-RFT. Name a YAML file")
    assert "no.yaml: no such file" in folder.ajet("config", "from-trinity", "no.yaml").err
