"""The `math_llm` judge: the rule of `math` where it is certain, else a model."""

from __future__ import annotations

from ajet import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_judges.asking import AskingJudge
from ajet_judges.numeric import Math
from ajet_judges.questions import Question, Verdict, task_text
from ajet_judges.reference import expected_text, response_text, verdict

INSTRUCTIONS = """You check the final answer of RESPONSE, a solution of a mathematical task. REFERENCE is known to be right.

Say whether the final answer of RESPONSE is equivalent to REFERENCE: equal in value, whatever its notation, its units or
the words around it. How it was found does not matter. No final answer, or several that differ, are not equivalent."""


class Equivalence(Verdict):
    """Whether a response's final answer is equivalent to the reference."""

    equivalent: bool


class MathLLM(AskingJudge, Math):
    """Like `math`, but a model decides where the rule is not certain.

    The rule is certain if it finds the answer, or if a box contains a different number.
    """

    name = "math_llm"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        reference, response = expected_text(task, self.answer), response_text(output)
        if not response.strip():
            return verdict(False)
        right = await self.compare(task, output)
        if right is not None:
            return verdict(right)
        about = {"TASK": task_text(task), "REFERENCE": reference, "RESPONSE": response}
        found, usage = await self.ask(Question(INSTRUCTIONS, about, Equivalence))
        return JudgeOutput(float(found.equivalent), found.equivalent, usage.metrics())
