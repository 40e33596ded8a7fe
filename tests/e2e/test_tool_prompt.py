"""Agents with tools train on a model whose chat template shows none, with `rollout.tool_prompt`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests import tokenizers
from tests.chat.test_tool_prompt import CHATML
from tests.examples.test_audit import audit
from tests.plugins.programs import calling, require
from tests.tiny import save_tiny_model

pytestmark = pytest.mark.e2e

AGENTS = {
    "openai": """
import json
import openai
client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {
    "a": {"type": "integer"}, "b": {"type": "integer"}}}}}
async def run(task):
    chat = [{"role": "user", "content": task.query}]
    for _ in range(4):
        answer = await client.chat.completions.create(model="m", messages=chat, tools=[TOOL])
        said = answer.choices[0].message
        chat.append(said)
        for call in said.tool_calls or []:
            result = sum(json.loads(call.function.arguments).values())
            chat.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})
        if not said.tool_calls:
            break
    return said.content or ""
""",
    "langgraph": """
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
@tool
def add(a: int, b: int) -> str:
    "Add two numbers."
    return str(a + b)
model = ChatOpenAI(model="m", base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
run = create_agent(model, [add], system_prompt="You add.", name="adder")
""",
}
JUDGE = """
def judge(task, output, episode):
    return sum(len(m.get("tool_calls") or ()) for chat in episode.messages for m in chat) % 5 / 5
"""


def save_calling_model(folder: Path) -> None:
    """A model without tools in its chat template that samples little else than a call of `add`, and the end of its turn."""
    from safetensors.torch import load_file, save_file

    tokenizer = copy.deepcopy(tokenizers.qwen3())
    tokenizer.chat_template = CHATML
    call = calling("add", a=1, b=2)
    tokenizer.add_tokens([call])
    save_tiny_model(folder, tokenizer, context=2048)
    weights = load_file(folder / "model.safetensors")
    constant = weights["model.embed_tokens.weight"][:, 0]  # as input nearly all of a state, as output a bias
    constant[:] = 1
    constant[tokenizer.convert_tokens_to_ids([call, "<|im_end|>"])] = 3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.kept
@pytest.mark.parametrize("agent", AGENTS)
def test_a_tool_loop_is_trained_in_one_timeline_and_passes_the_audit(
    agent: str, project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if agent == "langgraph":
        require("langgraph", "langchain_openai", "langchain.agents")
    save_calling_model(project.folder / "model")
    (project.folder / "agent.py").write_text(AGENTS[agent] + JUDGE)
    project.job(
        task={"reader": "tasks.jsonl"},
        workflow="agent.py:run",
        judge="agent.py:judge",
        model="model",
        rollout={"group_size": 4, "tool_prompt": "hermes", "sampling": {"max_tokens": 64}},
        train={"steps": 2, "batch_size": 2, "learning_rate": 1e-4},
        eval={"episodes": 1},
        backbone={"local": {"threads": 1}},
        run={"deterministic": True, "dir": "runs"},
    )
    project.ajet("run", "job.yaml")
    (run_dir,) = project.runs("runs")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["type"] == "train"]
    assert len(steps) == 2
    for step in steps:
        assert step["episodes_failed"] == step["breaks"] == 0 and "calls/tools_left_out" not in step
        assert step["calls_per_episode"] > 1 and step["timelines_per_episode"] == 1
    audit(project.folder / "runs", capsys)
