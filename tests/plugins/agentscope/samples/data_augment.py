"""The agent of model_tuning.py on tasks that are neither too easy nor too hard: the file has the data and the selector."""

import argparse
import os

from model_tuning import gsm8k_judge, run_react_agent

from ajet_agentscope.tuner import Algorithm, TunerChatModel, tune

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=str, default="data_augment.yaml")
    args = parser.parse_args()
    tuner_model = TunerChatModel(
        model_path=os.environ["SAMPLE_MODEL"],
        max_model_len=8192,
        max_tokens=16,
        temperature=1.0,
        inference_engine_num=4,
        tensor_parallel_size=1,
    )
    algorithm = Algorithm(
        algorithm_type="multi_step_grpo",
        group_size=2,
        learning_rate=1e-6,
        eval_interval_steps=20,
        batch_size=2,
    )
    tune(
        workflow_func=run_react_agent,
        judge_func=gsm8k_judge,
        config_path=args.config,
        model=tuner_model,
        algorithm=algorithm,
    )
