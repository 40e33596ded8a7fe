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
    "tune_prompt",
]
