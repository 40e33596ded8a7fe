"""The better of two models, by the words of a reference and by the tokens that they use."""

import asyncio
import logging
import os
from typing import Any

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel

from ajet_agentscope.tuner import DatasetConfig, JudgeOutput, WorkflowOutput
from ajet_agentscope.tuner.model_selection import avg_token_consumption_judge, select_model

logging.basicConfig(level=logging.INFO)

models = [
    OpenAIChatModel(
        name,
        api_key="key",
        client_kwargs={"base_url": os.environ["SAMPLE_URL"]},
        generate_kwargs={"max_tokens": 1024},
    )
    for name in ("careless", "careful")
]


async def translation_workflow(task: dict[str, Any], model: Any) -> WorkflowOutput:
    agent = ReActAgent(
        name="translator",
        sys_prompt="Translate the given text.",
        model=model,
        formatter=OpenAIChatFormatter(),
    )
    source_text = task.get("question", "") if isinstance(task, dict) else str(task)
    msg = Msg(name="user", content=f"Translate: {source_text}", role="user")
    return WorkflowOutput(response=await agent.reply(msg=msg))


async def word_judge(task: dict[str, Any], response: Any) -> JudgeOutput:
    said = ""
    if hasattr(response, "response"):
        for item in response.response.content:
            said += item["text"]
    elif isinstance(response, dict):
        said = response["response"].get_text_content()
    words = task.get("answer", "").split()
    found = sum(word in said for word in words) / len(words)
    return JudgeOutput(reward=found, metrics={"words": found})


async def main() -> None:
    dataset_config = DatasetConfig(path=os.path.join(os.getcwd(), "words"), split="test")
    for judge in (word_judge, avg_token_consumption_judge):
        best_model, metrics = await select_model(
            workflow_func=translation_workflow,
            judge_func=judge,
            train_dataset=dataset_config,
            candidate_models=models,
        )
        print(f"Selected best model: {best_model.model_name}")
        print(f"Metrics: {metrics}")


if __name__ == "__main__":
    asyncio.run(main())
