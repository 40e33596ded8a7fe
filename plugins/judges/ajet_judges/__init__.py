"""Judges: by rule, by a model, by comparing a group, by running code, and combinations of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ajet_judges.code import Code as Code
    from ajet_judges.combine import Combine as Combine
    from ajet_judges.environment import Environment as Environment
    from ajet_judges.llm import LLM as LLM
    from ajet_judges.math_llm import MathLLM as MathLLM
    from ajet_judges.numeric import Math as Math
    from ajet_judges.relative import Listwise as Listwise
    from ajet_judges.relative import Pairwise as Pairwise
    from ajet_judges.rubric import RubricJudge as RubricJudge
    from ajet_judges.text import Contains as Contains
    from ajet_judges.text import Exact as Exact

_WHERE = {
    "Code": "code",
    "Combine": "combine",
    "Contains": "text",
    "Environment": "environment",
    "Exact": "text",
    "LLM": "llm",
    "Listwise": "relative",
    "Math": "numeric",
    "MathLLM": "math_llm",
    "Pairwise": "relative",
    "RubricJudge": "rubric",
}
__all__ = list(_WHERE)


def __getattr__(name: str) -> Any:
    """Judges are imported when they are first used: `ajet --help` imports this package for its command."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
