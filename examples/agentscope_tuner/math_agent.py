"""The math agent of AgentScope's tuner tutorial, for AgentScope 2: train it on this machine.

    python examples/agentscope_tuner/math_agent.py

The first arguments are the data set, the workflow and the judge; a few minutes later, the agent subtracts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from agentscope.agent import Agent
from agentscope.message import UserMsg
from agentscope.model import ChatModelBase

from ajet_agentscope.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    TunedModel,
    TunerModelConfig,
    WorkflowOutput,
    tune,
)

DATA = Path(__file__).resolve().parent / "data"
# Any folder or Hugging Face id; `starter` is built on this machine.
MODEL = os.environ.get("MODEL", "starter")


async def run_math_agent(task: dict[str, Any], model: ChatModelBase) -> WorkflowOutput:
    """Let an agent answer the question of a record."""
    agent = Agent(name="math", system_prompt="Solve the math problem.", model=model)
    answer = await agent.reply(UserMsg("user", task["question"]))
    return WorkflowOutput(response=answer.get_text_content() or "")


async def judge_answer(task: dict[str, Any], response: str) -> JudgeOutput:
    """Reward 1 if the last number of the response is the answer."""
    numbers = re.findall(r"-?\d+", response)
    return JudgeOutput(reward=float(numbers[-1:] == [task["answer"]]))


def main(steps: int = 80) -> TunedModel:
    """Preview the data, train, and show what has changed."""
    train = DatasetConfig(path=str(DATA / "train.jsonl"), total_steps=steps)
    train.preview(2)
    tuned = tune(
        workflow_func=run_math_agent,
        judge_func=judge_answer,
        train_dataset=train,
        eval_dataset=DatasetConfig(path=str(DATA / "test.jsonl")),
        model=TunerModelConfig(model_path=MODEL, max_model_len=256, max_tokens=32),
        algorithm=AlgorithmConfig(
            algorithm_type="multi_step_grpo", learning_rate=1e-4, group_size=8, batch_size=16
        ),
        project_name="math",
    )
    before, after = tuned.before.reward, tuned.after.reward
    print(f"reward on the held-out questions: {before:.2f} before, {after:.2f} after")
    print(f"checkpoint: {tuned.experiment}/global_step_{steps}")
    return tuned


if __name__ == "__main__":
    main()
