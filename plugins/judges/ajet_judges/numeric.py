"""The `math` judge: the number or expression that a response ends with, compared with the task's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Self

from pydantic import Field, PrivateAttr

from ajet import EpisodeView, Judge, JudgeOutput, Task, WorkflowOutput
from ajet_judges.numbers import final_number, last_box, last_boxes, plain_number
from ajet_judges.reference import expected_text, response_text, verdict
from ajet_judges.symbolic import Symbolic

LONGEST = 20_000
"""Characters of a response that are looked at, from its end: there the answer is, if there is one."""
MAYBE_MORE = re.compile(r"[\\$^√π]|[0-9][, ][0-9]")
"""An expression, or a number with a comma for its point or spaces between its thousands."""


class Math(Judge):
    r"""Reward 1 if the response's number or expression equals the answer, else 0.

    It is the content of the last ``\boxed{…}``, else what the text states last. Numbers are compared
    exactly, as fractions: 42 = 42.0, 1,000 = 1000, 3/4 = 0.75. Where only one side has a percent sign,
    both of its readings count: 50% = 50 = 0.5. Everything else (roots, sets, intervals, matrices,
    equations) is compared by math-verify, in processes of their own. Only the last 20,000 characters count.
    """

    name = "math"

    answer: str = Field(default="answer", description="Key of the task's metadata that contains the answer.")
    tolerance: float = Field(
        default=0.0, ge=0, allow_inf_nan=False, description="Largest accepted difference."
    )
    seconds: float = Field(
        5.0, gt=0, description="Maximum time for comparing expressions; after it, the answer counts as wrong."
    )
    _symbolic: Symbolic | None = PrivateAttr(None)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Hold the processes that compare expressions; they start when such are met."""
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
        """True: the answer was found. False: it was not, surely. None: it was not found. Raises ValueError
        that names the task if its answer is neither number nor expression."""
        reference, response = expected_text(task, self.answer), response_text(output)[-LONGEST:]
        expected = plain_number(reference)
        box = last_boxes(response) if expected is None else last_box(response)
        if expected is not None:
            found = final_number(response)
            # By its decimal notation: a tolerance of 0.1 is a tenth, not the double next to it.
            if found is not None and found.equals(expected, Fraction(str(self.tolerance))):
                return True
            if found is not None and box is not None:
                return False
            if not MAYBE_MORE.search(response):
                return None  # words and other numbers: nothing that could be this value in other signs
        try:
            return await self._equal(reference, response if box is None else rf"$\boxed{{{box}}}$") or None
        except ValueError as error:
            raise ValueError(
                f"task {task.id!r}: metadata[{self.answer!r}] is {reference!r}, which {error}"
            ) from None

    async def _equal(self, reference: str, response: str) -> bool | None:
        if self._symbolic is not None:
            return await self._symbolic.equal(reference, response)
        async with self.open():
            return await self._equal(reference, response)
