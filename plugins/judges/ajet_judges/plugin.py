"""The hooks of the distribution."""

from __future__ import annotations

from ajet import Plugin, hookimpl
from ajet_judges.code import Code
from ajet_judges.combine import Combine
from ajet_judges.environment import Environment
from ajet_judges.llm import LLM
from ajet_judges.numeric import Math, MathLLM
from ajet_judges.openai.judge import OpenAIGrader
from ajet_judges.relative import Listwise, Pairwise
from ajet_judges.rubric import RubricJudge
from ajet_judges.text import Contains, Exact


@hookimpl
def ajet_plugins() -> list[type[Plugin]]:
    return [
        *(Exact, Contains, Math, LLM, MathLLM, RubricJudge, Listwise, Pairwise, Environment, Code, Combine),
        OpenAIGrader,
    ]


@hookimpl
def ajet_doctor() -> list[tuple[str, str, str]]:
    from ajet_judges.sandbox import doctor

    return [doctor()]
