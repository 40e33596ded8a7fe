"""The math agent of AgentScope's tuner tutorial, for AgentScope 1.0.21: only the import of the tuner is changed.

python examples/agentscope_tuner/math_agent_1.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import ChatModelBase

from ajet_agentscope.tuner import (  # before: from agentscope.tuner import …
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    TunerModelConfig,
    WorkflowOutput,
    tune,
)

DATA = Path(__file__).resolve().parent / "data"
# Any folder or Hugging Face id; `starter` is built on this machine.
MODEL = os.environ.get("MODEL", "starter")


async def run_math_agent(task: dict[str, Any], model: ChatModelBase) -> WorkflowOutput:
    """Let an agent answer the question of a record."""
    agent = ReActAgent(
        name="math", sys_prompt="Solve the math problem.", model=model, formatter=OpenAIChatFormatter()
    )
    agent.set_console_output_enabled(False)
    answer = await agent.reply(Msg("user", task["question"], role="user"))
    return WorkflowOutput(response=answer)


async def judge_answer(task: dict[str, Any], response: Msg) -> JudgeOutput:
    """Reward 1 if the last number of the response is the answer."""
    numbers = re.findall(r"-?\d+", response.get_text_content() or "")
    return JudgeOutput(reward=float(numbers[-1:] == [task["answer"]]))


def main(steps: int = 80) -> Any:
    """Preview the data, and train."""
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
    print(
        f"reward on the held-out questions: {tuned.before.reward:.2f} before, {tuned.after.reward:.2f} after"
    )
    return tuned


if __name__ == "__main__":
    main()
