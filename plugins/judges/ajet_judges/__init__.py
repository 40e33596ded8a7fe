"""Judges: by rule, by a model, by comparing a group, by running code, and combinations of them; and `run_python`, the
sandbox of the judge `code`, for tools of agents."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_judges.code import Code as Code
    from ajet_judges.combine import Combine as Combine
    from ajet_judges.environment import Environment as Environment
    from ajet_judges.llm import LLM as LLM
    from ajet_judges.numeric import Math as Math
    from ajet_judges.numeric import MathLLM as MathLLM
    from ajet_judges.openai.judge import OpenAIGrader as OpenAIGrader
    from ajet_judges.relative import Listwise as Listwise
    from ajet_judges.relative import Pairwise as Pairwise
    from ajet_judges.rubric import RubricJudge as RubricJudge
    from ajet_judges.sandbox import Limits as Limits
    from ajet_judges.sandbox import NoSandbox as NoSandbox
    from ajet_judges.sandbox import Ran as Ran
    from ajet_judges.sandbox import run_python as run_python
    from ajet_judges.text import Contains as Contains
    from ajet_judges.text import Exact as Exact

_WHERE = {
    "Code": "code",
    "Combine": "combine",
    "Contains": "text",
    "Environment": "environment",
    "Exact": "text",
    "LLM": "llm",
    "Limits": "sandbox",
    "Listwise": "relative",
    "Math": "numeric",
    "MathLLM": "numeric",
    "NoSandbox": "sandbox",
    "OpenAIGrader": "openai.judge",
    "Pairwise": "relative",
    "Ran": "sandbox",
    "RubricJudge": "rubric",
    "run_python": "sandbox",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Everything is imported when it is first used: `ajet --help` imports this package for its command."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
