"""A doctor that asks or stops, judged by another model, which the judge calls itself."""

import os
import re
import time

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.memory import InMemoryMemory
from agentscope.message import Msg

from ajet_agentscope.tuner import Algorithm, Dataset, JudgeOutput, TunerChatModel, WorkflowOutput, tune

AUXILIARY_MODEL_NAME = "auxiliary_model"


def format_messages(task_desc: list | str) -> list[dict[str, str]]:
    if isinstance(task_desc, list):
        return task_desc
    if isinstance(task_desc, str):
        return [{"role": "user", "content": task_desc}]
    raise ValueError("`task_desc` must be a list or a string")


async def run_react_agent(
    task: dict, model: TunerChatModel, auxiliary_models: dict[str, TunerChatModel]
) -> WorkflowOutput:
    assert len(auxiliary_models) == 1
    agent = ReActAgent(
        name="react_agent",
        sys_prompt="You are a doctor. Ask one question, or end with <stop />.",
        model=model,
        formatter=OpenAIChatFormatter(),
        toolkit=None,
        memory=InMemoryMemory(),
        max_iters=1,
    )
    messages = format_messages(task["messages"])
    response = await agent.reply(
        [Msg(name=x["role"], content=x["content"], role=x["role"]) for x in messages],
    )
    return WorkflowOutput(response=response)


def parse_tag_string(text: str) -> dict:
    return dict(re.findall(r"<(\w+)>(.*?)</\1>", text))


async def llm_reward(task: dict, response: str, auxiliary_models: dict[str, TunerChatModel]) -> dict:
    from agentscope import logger

    history = task["messages"] + [{"role": "assistant", "content": response}]
    messages = [
        {"role": "system", "content": f"Score the doctor. Known: {task['info_truth']}"},
        {"role": "user", "content": "\n".join(f"{m['role']}: {m['content']}" for m in history)},
    ]
    try_count, max_retries = 0, 5
    while try_count <= max_retries:
        try:
            client = auxiliary_models[AUXILIARY_MODEL_NAME]
            res = await client(messages)
            msg = Msg(name="assistant", content=list(res.content), role="assistant")
            return parse_tag_string(msg.get_text_content())
        except Exception as e:
            try_count += 1
            logger.warning(f"error: {e}, retries: {try_count}")
            time.sleep(try_count * 1)
    return {}


async def learn2ask_judge(
    task: dict, response: Msg, auxiliary_models: dict[str, TunerChatModel]
) -> JudgeOutput:
    assert len(auxiliary_models) == 1
    response_text = response.get_text_content()
    action_truth = task.get("decision_truth", "continue")
    action = "stop" if "<stop />" in response_text else "continue"
    action_score = float(action_truth == action)
    scores: dict = {}
    if action_truth == action == "continue":
        scores = await llm_reward(task, response_text, auxiliary_models)
    format_score = float(scores.get("format_score", 0.0))
    content_score = float(scores.get("content_score", 0.0))
    final_reward = action_score * (1 + 2 * content_score) + format_score
    return JudgeOutput(reward=final_reward, metrics={"reward": final_reward})


if __name__ == "__main__":
    config_path = os.path.join(os.path.dirname(__file__), "learn_to_ask.yaml")
    dataset = Dataset(path="patients", split="train", total_epochs=1)
    tuner_model = TunerChatModel(
        model_path=os.environ["SAMPLE_MODEL"],
        max_model_len=8192,
        max_tokens=16,
        temperature=1.0,
        tensor_parallel_size=1,
        inference_engine_num=4,
        reasoning_parser=None,
    )
    aux_models = {
        AUXILIARY_MODEL_NAME: TunerChatModel(
            model_path=os.environ["SAMPLE_MODEL"],
            max_model_len=8192,
            max_tokens=16,
            temperature=0.7,
            tensor_parallel_size=2,
            inference_engine_num=1,
            reasoning_parser=None,
        ),
    }
    algorithm = Algorithm(algorithm_type="grpo", group_size=2, learning_rate=5.0e-07, batch_size=2)
    tune(
        workflow_func=run_react_agent,
        judge_func=learn2ask_judge,
        train_dataset=dataset,
        model=tuner_model,
        auxiliary_models=aux_models,
        algorithm=algorithm,
        config_path=config_path,
    )
