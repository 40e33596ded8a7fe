"""An agent that walks over a frozen lake: the workflow gives the reward, and the file defaults."""

import os
import random

from agentscope.agent import AgentBase
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import ChatModelBase

from ajet_agentscope.tuner import AlgorithmConfig, DatasetConfig, TunerModelConfig, WorkflowOutput, tune

MOVES = {"Left": -1, "Right": 1}


class FrozenLakeAgent(AgentBase):
    def __init__(self, model: ChatModelBase) -> None:
        super().__init__()
        self.name = "react_agent"
        self.model = model
        self.formatter = OpenAIChatFormatter()

    async def reply(self, msg: Msg) -> Msg:
        said = await self.model(await self.formatter.format([msg]))
        answer = Msg(self.name, list(said.content), role="assistant")
        await self.print(answer, True)
        return answer

    @staticmethod
    def get_action(msg: Msg) -> int:
        text = msg.get_text_content() or ""
        return next((step for name, step in MOVES.items() if name in text), 0)


async def run_frozen_lake(
    task: dict, model: ChatModelBase, auxiliary_models: dict[str, ChatModelBase]
) -> WorkflowOutput:
    assert len(auxiliary_models) == 0
    arguments = task.get("workflow_args", {}) or task
    agent, size = FrozenLakeAgent(model), task.get("size", 8)
    place, reason = random.Random(task.get("seed", 42)).randrange(size), "max_steps_reached"
    taken = 0
    while taken < arguments.get("agent_max_steps", 2):
        taken += 1
        answer = await agent.reply(Msg("user", f"{place} of {size}. Left or Right?", role="user"))
        place += agent.get_action(answer)
        if place in (-1, size):
            reason = "success" if place == size else "hole"
            break
    text = f"Steps taken: {taken}\nTerminate reason: {reason}"
    return WorkflowOutput(
        reward=float(reason == "success"),
        response=Msg("assistant", text, role="assistant"),
        metrics={"env_steps": float(taken), "env_done": float(reason != "max_steps_reached")},
    )


if __name__ == "__main__":
    tune(
        workflow_func=run_frozen_lake,
        model=TunerModelConfig(
            model_path=os.environ["SAMPLE_MODEL"],
            max_model_len=8192,
            max_tokens=16,
            inference_engine_num=6,
            reasoning_parser=None,
        ),
        train_dataset=DatasetConfig(path="lakes", split="train"),
        algorithm=AlgorithmConfig(
            algorithm_type="multi_step_grpo", group_size=2, batch_size=2, learning_rate=1e-6
        ),
        config_path=os.path.join(os.path.dirname(__file__), "frozen_lake.yaml"),
    )
