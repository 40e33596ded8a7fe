"""The agent of model_tuning.py, with a configuration file of Trinity-RFT beside the arguments."""

import os
from pathlib import Path

from model_tuning import gsm8k_judge, run_react_agent

from ajet_agentscope.tuner import AlgorithmConfig, DatasetConfig, TunerModelConfig, tune

if __name__ == "__main__":
    dataset = DatasetConfig(path="gsm8k", name="main", split="train", total_epochs=1)
    config_path = Path(__file__).parent / "math_agent.yaml"
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
        config_path=str(config_path),
    )
