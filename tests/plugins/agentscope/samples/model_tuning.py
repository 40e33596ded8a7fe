"""An agent with the meta tool, trained from Python alone."""

import os

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel

from ajet_agentscope.tuner import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    TunerModelConfig,
    WorkflowOutput,
    tune,
)


async def run_react_agent(
    task: dict,
    model: OpenAIChatModel,
    auxiliary_models: dict[str, OpenAIChatModel],
) -> WorkflowOutput:
    assert len(auxiliary_models) == 0
    agent = ReActAgent(
        name="react_agent",
        sys_prompt="Solve the problem. Return your final answer within \\boxed{}.",
        model=model,
        enable_meta_tool=True,
        formatter=OpenAIChatFormatter(),
    )
    response = await agent.reply(msg=Msg("user", task["question"], role="user"))
    return WorkflowOutput(response=response)


async def gsm8k_judge(
    task: dict,
    response: Msg,
    auxiliary_models: dict[str, OpenAIChatModel],
) -> JudgeOutput:
    from trinity.common.rewards.math_reward import MathBoxedRewardFn

    assert len(auxiliary_models) == 0
    reward_fn = MathBoxedRewardFn()
    truth = task["answer"]
    if isinstance(truth, str) and "####" in truth:
        truth = truth.split("####")[1].strip()
    result = response.get_text_content()
    reward_dict = reward_fn(response=result, truth=truth)
    return JudgeOutput(reward=sum(reward_dict.values()), metrics=reward_dict)


if __name__ == "__main__":
    dataset = DatasetConfig(path="gsm8k", name="main", split="train", total_steps=2)
    tuner_model = TunerModelConfig(
        model_path=os.environ["SAMPLE_MODEL"],
        max_model_len=8192,
        max_tokens=16,
        temperature=1.0,
        inference_engine_num=4,
        tensor_parallel_size=1,
    )
    algorithm = AlgorithmConfig(
        algorithm_type="multi_step_grpo", group_size=2, learning_rate=1e-6, batch_size=2
    )
    tune(
        workflow_func=run_react_agent,
        judge_func=gsm8k_judge,
        train_dataset=dataset,
        model=tuner_model,
        algorithm=algorithm,
    )
