"""AgentScope's tuner on AgentJet's backbones: the names of ``agentscope.tuner``, with the same parameters and defaults."""

from ajet_agentscope.tuner.config import (
    AlgorithmConfig,
    DatasetConfig,
    JudgeOutput,
    JudgeType,
    PromptTuneConfig,
    TinkerConfig,
    TunerModelConfig,
    WorkflowOutput,
    WorkflowType,
)
from ajet_agentscope.tuner.functions import check_judge_function, check_workflow_function
from ajet_agentscope.tuner.model_selection import (
    avg_time_judge,
    avg_token_consumption_judge,
    select_model,
)
from ajet_agentscope.tuner.prompt_tune import tune_prompt
from ajet_agentscope.tuner.tune import TunedModel, tune

Algorithm, Dataset, TunerChatModel = AlgorithmConfig, DatasetConfig, TunerModelConfig
"""Their names in AgentScope before 1.0.12, and in its samples."""

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "Dataset",
    "DatasetConfig",
    "JudgeOutput",
    "JudgeType",
    "PromptTuneConfig",
    "TinkerConfig",
    "TunedModel",
    "TunerChatModel",
    "TunerModelConfig",
    "WorkflowOutput",
    "WorkflowType",
    "avg_time_judge",
    "avg_token_consumption_judge",
    "check_judge_function",
    "check_workflow_function",
    "select_model",
    "tune",
    "tune_prompt",
]
