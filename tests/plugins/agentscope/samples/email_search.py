"""An agent with tools of its own searches a mailbox; a small auxiliary model judges. The file asks for Trinity's loss `rec`."""

import json
import os
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg, TextBlock
from agentscope.model import ChatModelBase
from agentscope.tool import Toolkit, ToolResponse
from pydantic import BaseModel, Field

from ajet_agentscope.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    TunerModelConfig,
    WorkflowOutput,
    tune,
)

MAILBOX = {"m1": "The meeting is at nine.", "m2": "Lunch is at noon."}


class Answer(BaseModel):
    """The agent's answer."""

    answer: str = Field(description="the answer to the question")
    sources: list[str] = Field(description="ids of the mails it is from")


def without_tool_choice(_self: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    kwargs.pop("tool_choice", None)
    return kwargs


class EmailSearchAgent(ReActAgent):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen: list[str] = []
        toolkit = Toolkit()
        toolkit.register_tool_function(self.search_emails)
        super().__init__(*args, toolkit=toolkit, **kwargs)
        self.register_instance_hook("pre_reasoning", "tool_choice_hook", without_tool_choice)

    async def reset(self) -> None:
        self.seen.clear()
        await self.memory.clear()

    def search_emails(self, keywords: list[str], **_kwargs: Any) -> ToolResponse:
        """Search the mailbox.

        Args:
            keywords: Words of which a mail has one.
        """
        mails = {key: text for key, text in MAILBOX.items() if any(word in text for word in keywords)}
        self.seen.extend(mails)
        return ToolResponse(content=[TextBlock(type="text", text=json.dumps(mails))])


async def run_email_search_agent(
    task: dict, model: ChatModelBase, auxiliary_models: dict[str, ChatModelBase]
) -> WorkflowOutput:
    assert len(auxiliary_models) > 0
    agent = EmailSearchAgent(
        name="react_agent",
        sys_prompt="Search the mails, and answer.",
        model=model,
        formatter=OpenAIChatFormatter(),
        max_iters=2,
    )
    await agent.reset()
    response = await agent.reply(msg=Msg("user", task["question"], role="user"), structured_model=Answer)
    response.metadata = {**(response.metadata or {}), "seen": agent.seen}
    return WorkflowOutput(response=response)


async def email_search_judge(
    task: dict, response: Msg, auxiliary_models: dict[str, ChatModelBase]
) -> JudgeOutput:
    answer = response.get_text_content() or ""
    asked = [
        {"role": "system", "content": "Say true if the answer is right, else false."},
        {"role": "user", "content": f"{task['question']} {task['answer']} {answer}"},
    ]
    said = await auxiliary_models["judge"](asked)
    text = "".join(str(block.get("text", "")) for block in said.content)
    scores = {"accuracy": float("true" in text.lower()), "format": 0.1 * bool(response.metadata["seen"])}
    return JudgeOutput(reward=sum(scores.values()), metrics={**scores, "turns": 1})


if __name__ == "__main__":
    small = os.environ["SAMPLE_MODEL"]
    tune(
        workflow_func=run_email_search_agent,
        judge_func=email_search_judge,
        train_dataset=DatasetConfig(path="mails", split="train", total_steps=2),
        model=TunerModelConfig(
            model_path=small,
            max_model_len=8192,
            max_tokens=16,
            inference_engine_num=4,
            reasoning_parser=None,
        ),
        auxiliary_models={
            "judge": TunerModelConfig(
                model_path=small,
                max_model_len=2500,
                max_tokens=16,
                inference_engine_num=1,
                tensor_parallel_size=2,
                tool_call_parser=None,
                reasoning_parser=None,
            )
        },
        algorithm=AlgorithmConfig(
            algorithm_type="multi_step_grpo", group_size=2, batch_size=2, learning_rate=1e-6
        ),
        config_path=os.path.join(os.path.dirname(__file__), "email_search.yaml"),
    )
