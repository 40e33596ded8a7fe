"""AgentScope's tuner on AgentJet's backbones: the names of ``agentscope.tuner``, with the same parameters and defaults."""

from ajet_agentscope.tuner.config import (
    AlgorithmConfig,
    JudgeOutput,
    JudgeType,
    PromptTuneConfig,
    TinkerConfig,
    TunerModelConfig,
    WorkflowOutput,
    WorkflowType,
)
from ajet_agentscope.tuner.data import DatasetConfig
from ajet_agentscope.tuner.model_selection import (
    avg_time_judge,
    avg_token_consumption_judge,
    select_model,
)
from ajet_agentscope.tuner.prompts import tune_prompt

__all__ = [
    "AlgorithmConfig",
    "DatasetConfig",
    "JudgeOutput",
    "JudgeType",
    "PromptTuneConfig",
    "TinkerConfig",
    "TunerModelConfig",
    "WorkflowOutput",
    "WorkflowType",
    "avg_time_judge",
    "avg_token_consumption_judge",
    "select_model",
    "tune_prompt",
]
