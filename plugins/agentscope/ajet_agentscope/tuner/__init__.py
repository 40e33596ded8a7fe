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
from ajet_agentscope.tuner.signatures import check_judge_function, check_workflow_function
from ajet_agentscope.tuner.tune import TunedModel, tune

__all__ = [
    "AlgorithmConfig",
    "DatasetConfig",
    "JudgeOutput",
    "JudgeType",
    "PromptTuneConfig",
    "TinkerConfig",
    "TunedModel",
    "TunerModelConfig",
    "WorkflowOutput",
    "WorkflowType",
    "check_judge_function",
    "check_workflow_function",
    "tune",
    "tune_prompt",
]
