"""A better system prompt for an agent with a tool."""

import os

from agentscope.agent import ReActAgent
from agentscope.formatter import OpenAIChatFormatter
from agentscope.message import Msg
from agentscope.model import OpenAIChatModel
from agentscope.tool import Toolkit, execute_python_code

from ajet_agentscope.tuner import DatasetConfig, JudgeOutput, PromptTuneConfig, WorkflowOutput, tune_prompt


async def workflow(task: dict, system_prompt: str) -> WorkflowOutput:
    toolkit = Toolkit()
    toolkit.register_tool_function(execute_python_code)
    agent = ReActAgent(
        name="react_agent",
        sys_prompt=system_prompt,
        model=OpenAIChatModel(
            "qwen-flash",
            api_key="key",
            client_kwargs={"base_url": os.environ["SAMPLE_URL"]},
            generate_kwargs={"max_tokens": 512},
        ),
        formatter=OpenAIChatFormatter(),
        toolkit=toolkit,
        print_hint_msg=False,
    )
    agent.set_console_output_enabled(False)
    response = await agent.reply(msg=Msg("user", task["question"], role="user"))
    return WorkflowOutput(response=response)


async def gsm8k_judge(task: dict, response: Msg) -> JudgeOutput:
    from trinity.common.rewards.math_reward import MathBoxedRewardFn

    reward_fn = MathBoxedRewardFn()
    truth = task["answer"].split("####")[1].strip()
    reward_dict = reward_fn(response=response.get_text_content(), truth=truth)
    return JudgeOutput(reward=sum(reward_dict.values()), metrics=reward_dict)


if __name__ == "__main__":
    init_prompt = "You are an agent. Please solve the math problem given to you."
    optimized_prompt, metrics = tune_prompt(
        workflow=workflow,
        init_system_prompt=init_prompt,
        judge_func=gsm8k_judge,
        train_dataset=DatasetConfig(path="train.parquet", name="", split=""),
        eval_dataset=DatasetConfig(path="test.parquet", name="", split=""),
        config=PromptTuneConfig(lm_model_name="dashscope/qwen3-max", optimization_level="light"),
    )
    print(f"Optimized prompt: {optimized_prompt}")
    print(f"Metrics: {metrics}")
