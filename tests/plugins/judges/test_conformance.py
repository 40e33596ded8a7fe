"""Each judge keeps what every judge promises; and the checks notice one that does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ajet_judges as judges
from ajet import EpisodeView, GroupJudge, Judge, JudgeOutput, Task, WorkflowOutput
from ajet.plugins import load_plugins
from ajet.testing import judges as checks
from ajet.testing.judges import JUDGE_CHECKS, JudgeSubject
from ajet_judges import plugin
from ajet_judges.combine import CombinedJudge
from ajet_judges.sandbox import Limits
from tests.tiers import thinned

from .judge_model import Asked, serving
from .test_sandbox import WALLS

RUBRIC = "criteria:\n- {name: right, text: It is right.}\n- {name: short, text: It is short.}\n"
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```"


def verdict(asked: Asked) -> dict[str, Any]:
    """A model that likes 42."""
    schema = asked.schema["properties"]
    right = "42" in asked.data.get("RESPONSE", "")
    said: dict[str, Any] = {}
    for name in asked.fields:
        kind = schema[name]
        if name == "better":
            good = {n: "42" in asked.data[n] for n in ("FIRST", "SECOND")}
            said[name] = (
                "equal" if good["FIRST"] == good["SECOND"] else "first" if good["FIRST"] else "second"
            )
        elif kind["type"] == "boolean":
            said[name] = right
        else:
            said[name] = kind["maximum"] * (right or "42" in asked.data.get(name, ""))
    return {"reason": "", **said}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], tuple[Judge, dict[str, Any]]]]:
    """A judge by name, and what there is to know about it."""
    (tmp_path / "rubric.yaml").write_text(RUBRIC)
    tests = [{"call": "add(2, 3)", "result": 5}, {"call": "add('a', 'b')", "result": "ab"}]
    with serving(verdict) as model:
        endpoint = model.endpoint()
        made: dict[str, tuple[Judge, dict[str, Any]]] = {
            "exact": (judges.Exact(), {}),
            "contains": (judges.Contains(), {}),
            "math": (judges.Math(), {"responses": (r"\boxed{42.0}", r"\boxed{\sqrt{1764}}", "41")}),
            "math_llm": (judges.MathLLM(endpoint=endpoint), {}),
            "llm": (judges.LLM(endpoint=endpoint), {}),
            "rubric": (judges.RubricJudge(path=tmp_path / "rubric.yaml", endpoint=endpoint), {}),
            "listwise": (judges.Listwise(endpoint=endpoint), {}),
            "pairwise": (judges.Pairwise(endpoint=endpoint, rounds=2, opponent="answer"), {}),
            "environment": (judges.Environment(), {"metadata": {"score": 0.5}}),
            "code": (
                judges.Code(limits=Limits(seconds=60), partial=True),
                {
                    "task": Task("t", "Write add.", metadata={"tests": tests}),
                    "responses": (PROGRAM, "def add(: "),
                },
            ),
            "combine": (
                judges.Combine(
                    parts={
                        "right": CombinedJudge(judge=judges.Contains()),
                        "form": CombinedJudge(judge=judges.Exact()),
                    }
                ),
                {},
            ),
            "openai_grader": (
                judges.OpenAIGrader(
                    grader={
                        "type": "string_check",
                        "operation": "like",
                        "input": "{{sample.output_text}}",
                        "reference": "{{item.answer}}",
                    }
                ),
                {},
            ),
        }
        yield made.__getitem__


OURS = (
    "exact",
    "contains",
    "math",
    "math_llm",
    "llm",
    "rubric",
    "listwise",
    "pairwise",
    "environment",
    "code",
    "combine",
    "openai_grader",
)


def test_none_of_ours_is_forgotten() -> None:
    assert {cls.name for cls in plugin.ajet_plugins()} == set(OURS)
    assert {i.name for i in load_plugins().classes.values() if i.kind == "judge"} >= set(OURS)


@pytest.mark.parametrize("name", OURS)
@thinned
def test_the_judge(check_judge: Any, make: Any, name: str) -> None:
    if name == "code" and WALLS is not None:
        pytest.skip(WALLS)
    judge, settings = make(name)
    check_judge(judge, **settings)


def test_a_combination_with_a_judge_of_groups(check_judge: Any, make: Any) -> None:
    listwise, _ = make("listwise")
    check_judge(
        judges.Combine(
            parts={"rank": CombinedJudge(judge=listwise), "right": CombinedJudge(judge=judges.Contains())}
        )
    )


# ------------------------------------------------------------------ the checks themselves


class Faulty(Judge):
    """Something is wrong with it."""

    name = "faulty"

    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        return self.verdict(str(output.response))

    def verdict(self, response: str) -> JudgeOutput:
        return JudgeOutput(float(len(response)))


class Remembers(Faulty):
    seen: list[str] = []  # noqa: RUF012 - pydantic copies it

    def verdict(self, response: str) -> JudgeOutput:
        self.seen.append(response)
        return JudgeOutput(float(len(self.seen)))


class SaysTrue(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        return JudgeOutput(reward=True)


class SaysNothing(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        return None  # type: ignore[return-value]


class CountsWords(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        return JudgeOutput(1 / len(response.split()))


class Infinite(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        return JudgeOutput(1.0, metrics={"share": float("inf")})


class Sleeps(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        if len(response) > 1000:
            time.sleep(0.8)
        return JudgeOutput(1.0)


class Computes(Faulty):
    def verdict(self, response: str) -> JudgeOutput:
        began = time.thread_time()
        while len(response) > 1000 and time.thread_time() - began < 0.4:
            sum(range(100_000))
        return JudgeOutput(1.0)


class Hangs(Faulty):
    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        if not task.query:
            await asyncio.sleep(60)
        return JudgeOutput(1.0)


class HoldsOut(Faulty):
    async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            await asyncio.sleep(60)
        return JudgeOutput(1.0)


class Opens(Faulty):
    held: dict[str, Any] = {}  # noqa: RUF012

    def open(self) -> Any:
        self.held["file"] = open(__file__)  # noqa: SIM115 - what cannot be pickled
        return super().open()


class Forgets(GroupJudge):
    name = "forgets"

    async def score_group(self, task: Task, episodes: Any) -> Any:
        return [JudgeOutput(1.0) for e in episodes if not e.failure]


class First(GroupJudge):
    name = "first"

    async def score_group(self, task: Task, episodes: Any) -> Any:
        return [JudgeOutput(float(i == 0)) for i, _ in enumerate(episodes)]


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        (Remembers, checks.check_equal_input_has_an_equal_verdict),
        (SaysTrue, checks.check_verdicts_are_numbers),
        (SaysNothing, checks.check_verdicts_are_numbers),
        (Infinite, checks.check_verdicts_are_numbers),
        (CountsWords, checks.check_every_response_has_a_verdict),
        (Sleeps, checks.check_it_does_not_hold_the_loop),
        (Computes, checks.check_it_does_not_hold_the_loop),
        (Hangs, checks.check_what_it_cannot_judge_is_told),
        (HoldsOut, checks.check_cancelling_ends_it),
        (Opens, checks.check_its_configuration_is_plain_data),
        (Forgets, checks.check_groups_are_judged_whole),
        (First, checks.check_groups_are_judged_whole),
    ],
    ids=lambda given: given.__name__,
)
def test_a_faulty_judge_is_noticed(fault: type[Judge], check: Any) -> None:
    subject = JudgeSubject(fault(), seconds=1.0, held=0.2, leave=0.5)
    with pytest.raises(AssertionError):
        asyncio.run(check(subject))


def test_a_judge_without_fault_passes() -> None:
    for check in JUDGE_CHECKS:
        asyncio.run(check(JudgeSubject(Faulty())))
