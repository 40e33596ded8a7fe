"""Two steps of each example that trains on this machine, with a model of random weights, pass `ajet audit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.cli import run_program
from tests.patience import PATIENCE
from tests.plugins.programs import require
from tests.tiers import fast
from tests.tiny import save_tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples"
SUMS: dict[str, object] = {"task.reader": "tasks.jsonl", "task.validation": "tasks.jsonl"}
JOBS: dict[str, dict[str, object]] = {
    "frozenlake/job.yaml": {},
    "countdown/job.yaml": {},
    "bfcl/job.yaml": {"task.reader.count": 4},
    "reasoning_gym/job.yaml": {},
    "learn_to_ask/job.yaml": {},
    "rubric/job.yaml": {},
    "math_code/job.yaml": {},
    "coding/job.yaml": {},
    "apps/job.yaml": {},
    "search/job.yaml": {},
    "werewolves/job.yaml": {},
    "werewolves/gpu.yaml": {"train.targets": "[wolves,village]"},
    "shapes/job.yaml": {"model": "noise.py:Noise"},
    "langgraph/job.yaml": {},
    # Its SDK lets an episode fail whose answer is cut off; most of noise are.
    "openai_agents/job.yaml": {"rollout.group_size": 8},
    "agentscope/job.yaml": {},
    "autogen/job.yaml": {},
    "math/job.yaml": SUMS,
    "qwen3_lora/job.yaml": SUMS,
    "cluster/qwen3-4b-8gpus.yaml": {**SUMS, "backbone": "local"},
    "drift.yaml": {},
}
"""What each needs beside `BRIEF`. The models of those for GPUs are replaced, too."""
NEEDED = {
    "agentscope.credential": ("agentscope", "apps", "werewolves"),
    "agents": ("openai_agents", "math_code"),
    "autogen_agentchat": ("autogen",),
    "bfcl_eval": ("bfcl",),
    "gymnasium": ("frozenlake",),
    "langgraph": ("langgraph", "countdown", "search"),
    "reasoning_gym": ("reasoning_gym",),
}
"""The examples that need a package which an environment may lack."""
BRIEF = {
    "judge": "judge.py:judge",
    "model": "model",
    "train.steps": 2,
    "train.batch_size": 2,
    "rollout.group_size": 2,
    "rollout.timeout": PATIENCE,
    "rollout.sampling.max_tokens": 24,
    "eval.episodes": 1,
    "run.dir": "runs",
}
FILES = {
    # Rewards that differ, so that there is something to train.
    "judge.py": """
import hashlib

def judge(task, output, episode):
    said = "".join(str(m.get("content")) for chat in episode.messages for m in chat if m["role"] == "assistant")
    return hashlib.sha256(said.encode(errors="replace")).digest()[0] / 255
""",
    "noise.py": """
from ajet_local.starter.vision import StarterVision

class Noise(StarterVision):
    name = "noise"

    def phases(self):
        return ()
""",
    "drift.yaml": f"task: {{reader: {EXAMPLES}/drift/tasks.jsonl}}\nworkflow: {EXAMPLES}/drift/agent.py:run\n",
    "tasks.jsonl": "".join(f'{{"id": "{n}", "query": "1 + {n} =", "answer": "{n + 1}"}}\n' for n in range(4)),
}


def options(folder: Path, tokenizer: Any, **settings: object) -> list[str]:
    """Of `ajet run`, for two steps with a model of random weights; ``folder`` gets what they name."""
    save_tiny_model(folder / "model", tokenizer, context=8192)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return [word for key, value in {**BRIEF, **settings}.items() for word in ("--set", f"{key}={value}")]


def audit(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest run has trained, and nothing in it is unexplained."""
    capsys.readouterr()
    assert run_program(["audit", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unexplained"] == 0 and found["trained_tokens"] > 0


@pytest.mark.whole
@pytest.mark.e2e
@pytest.mark.parametrize("job", fast({4}, list(JOBS)))
def test_two_steps_of_an_example_pass_the_audit(
    job: str,
    command: Callable[..., str],
    tmp_path: Path,
    tokenizer: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require(*(module for module, examples in NEEDED.items() if job.partition("/")[0] in examples))
    words = options(tmp_path, tokenizer, **JOBS[job])
    file = tmp_path / job if job in FILES else EXAMPLES / job
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # some clients want one
    command("run", str(file), *words)
    audit(tmp_path / "runs", capsys)
