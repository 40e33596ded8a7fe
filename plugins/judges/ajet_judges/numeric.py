"""The judge `math` compares the number or expression at the end of a response with the task's answer; `math_llm` also asks a model,
where that rule is not certain.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Self

from pydantic import Field, PrivateAttr

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.endpoint import AskingJudge
from ajet_judges.numbers import (
    final_number,
    is_formula,
    last_box,
    last_boxes,
    last_date,
    last_list,
    last_parts,
    last_statement,
    measured_otherwise,
    plain_number,
    unlike,
)
from ajet_judges.questions import Question, Verdict, task_text
from ajet_judges.symbolic import Symbolic
from ajet_judges.text import expected_text, response_text, verdict

LONGEST = 20_000
"""Only this many characters at the end of a response are read: the answer is there, if there is one."""
MAYBE_MORE = re.compile(r"[\\$^√π]|[0-9][, ][0-9]")
"""Signs of an expression, or of a number with a decimal comma or spaces between thousands."""
INSTRUCTIONS = """You check the final answer of RESPONSE, a solution of a mathematical task. REFERENCE is known to be right.

Say whether the final answer of RESPONSE is equivalent to REFERENCE: equal in value, whatever its notation, its units or
the words around it. How it was found does not matter. No final answer, or several that differ, are not equivalent."""


class Math(Judge):
    r"""Reward 1 if the response's number or expression equals the answer, else 0.

    The response's answer is the content of the last ``\boxed{…}``, or else the text's last statement. Numbers are
    compared exactly, as fractions: 42 = 42.0, 1,000 = 1000, 3/4 = 0.75, 6.02e23 = 6.02 × 10^23, 5 million = 5,000,000. If only one
    side has a percent sign, 50% equals both 50 and 0.5. Units are left out, but 5 cm is not 5 m, and 2 hours are not 2 minutes. Dates,
    times, ratios and lists of numbers are compared as such. math-verify compares everything else (roots, sets, intervals, matrices,
    equations), in separate processes; a decimal that stands for an expression may be off by a millionth of it. Only the last 20,000
    characters are read.
    """

    name = "math"

    answer: str = Field(default="answer", description="Key of the task's metadata that contains the answer.")
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Largest accepted difference."
    )
    seconds: float = Field(
        5.0,
        gt=0,
        description="Seconds of processor time to compare expressions; after that, the answer counts as wrong.",
    )
    _symbolic: Symbolic | None = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Keep the processes that compare expressions; each starts when it is first needed."""
        async with super().open():
            self._symbolic = Symbolic(self.seconds)
            try:
                yield self
            finally:
                await self._symbolic.close()
                self._symbolic = None

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        return verdict(bool(await self.compare(task, output)))

    async def compare(self, task: Task, output: WorkflowOutput) -> bool | None:
        """True: the response has the answer. False: it certainly has another one. None: the answer was not found. Raises
        ValueError that names the task if its answer is neither a number nor an expression."""
        reference, response = expected_text(task, self.answer), response_text(output)[-LONGEST:]
        expected = plain_number(reference)
        box = last_boxes(response) if expected is None else last_box(response)
        stated = response if box is None else box
        if expected is not None:
            number = final_number(response)
            # From its decimal notation: a tolerance of 0.1 is exactly a tenth, not the nearest double.
            if number is not None and number.equals(expected, Fraction(str(self.tolerance))):
                return not measured_otherwise(reference, response)
            if number is not None and box is not None:
                return False
            if not MAYBE_MORE.search(response):
                return None  # only words and other numbers: the value cannot be there in another notation
        elif date := last_date(reference, whole=True):
            # For math-verify a date is a difference, as is that of another day.
            other = last_date(stated)
            return other == date if other or box is not None else None
        elif (parts := last_parts(reference, whole=True)) and (others := last_parts(stated)):
            return parts.equals(others) or (False if box is not None else None)
        elif (numbers := last_list(reference, whole=True)) and last_list(stated) == numbers:
            return True
        bare = last_statement(response) if box is None else ""
        if bare and "".join(bare.split()) == "".join(reference.strip("$ .").split()):
            return True
        try:
            answer = f"${bare}$" if is_formula(bare) else response if box is None else rf"$\boxed{{{box}}}$"
            return await self._equal(reference, answer, expected is not None) or None
        except ValueError as error:
            raise ValueError(
                f"task {task.id!r}: metadata[{self.answer!r}] is {reference!r}, which {error}"
            ) from None

    async def _equal(self, reference: str, response: str, exact: bool) -> bool | None:
        if self._symbolic is not None:
            return await self._symbolic.equal(reference, response, exact=exact, tolerance=self.tolerance)
        async with self.open():
            return await self._equal(reference, response, exact)


class Equivalence(Verdict):
    """Whether a response's final answer is equivalent to the reference."""

    equivalent: bool


class MathLLM(AskingJudge, Math):
    """Like `math`, but a model decides where the rule is not certain.

    The rule is certain if it finds the answer, or if a box contains a different number; not if the two have other units, or only one a
    percent sign or a base.
    """

    name = "math_llm"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        reference, response = expected_text(task, self.answer), response_text(output)
        if not response.strip():
            return verdict(False)
        right = await self.compare(task, output)
        if right is not None and not unlike(reference, response):
            return verdict(right)
        about = {"TASK": task_text(task), "REFERENCE": reference, "RESPONSE": response}
        judged, usage = await self.ask(Question(INSTRUCTIONS, about, Equivalence))
        return JudgeOutput(float(judged.equivalent), judged.equivalent, usage.metrics())
