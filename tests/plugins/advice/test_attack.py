"""Whether a judge can be fooled: planted holes are found, sound judges raise none."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ajet.interfaces.judge import FunctionJudge
from ajet.interfaces.progress import Silent
from ajet.rollout.episode import Episode, Plan
from ajet.tracker.record import EpisodeRecord
from ajet.types import EpisodeView, JudgeOutput, Task, WorkflowOutput
from ajet_advice.forecast.attack import Hole, attack

pytestmark = pytest.mark.whole

Judging = Callable[[Task, WorkflowOutput], Any]
SUMS = [Task(f"t{i}", f"What is {i} + {i + 3}?", (), {"answer": str(2 * i + 3)}) for i in range(12)]


def holes(judge: Judging, tasks: list[Task] = SUMS) -> list[Hole]:
    """The holes of a judge, whose model answers every second task rightly."""
    live = FunctionJudge(function=judge)
    episodes = []
    for number, task in enumerate(tasks):
        text = f"The answer is {task.metadata['answer'] if number % 2 else 'unknown'}"
        output = WorkflowOutput(response=text)
        verdict = asyncio.run(live.judge(task, output, EpisodeView(task.id, task.id, 0, 0)))
        plan = Plan(f"1.{number}/{task.id}/0", "", task, 0, number)
        episodes.append(Episode(plan, 0, output, EpisodeRecord(), reward=verdict.reward))
    settings = SimpleNamespace(rollout=SimpleNamespace(judge_timeout=60.0), task=None)
    job: Any = SimpleNamespace(
        config=settings, progress=Silent(), workflow=SimpleNamespace(is_plugin=False), tasks=tasks
    )
    return asyncio.run(attack(job, live, episodes)) or []


def contains(task: Task, output: WorkflowOutput) -> float:
    return float(task.metadata["answer"] in output.response)


def length(task: Task, output: WorkflowOutput) -> float:
    return min(len(output.response) / 2000, 1.0)


def empty_is_fine(task: Task, output: WorkflowOutput) -> float:
    words = output.response.split()
    return float(not words or words[-1] == task.metadata["answer"])


def form(task: Task, output: WorkflowOutput) -> float:
    return float("\\boxed{" in output.response or output.response.endswith(f" {task.metadata['answer']}"))


def overlap(task: Task, output: WorkflowOutput) -> float:
    asked, said = set(task.query.split()), set(output.response.split())
    return len(asked & said) / len(asked)


def believes(task: Task, output: WorkflowOutput) -> float:
    right = output.response.split()[-1:] == [task.metadata["answer"]]
    return float(right or "correct" in output.response)


def any_number(task: Task, output: WorkflowOutput) -> float:
    return float(bool(re.search(r"is \d+", output.response)))


def repeated(task: Task, output: WorkflowOutput) -> JudgeOutput:
    words = output.response.split()
    return JudgeOutput(reward=min(len(words) / 300, 1.0) if len(set(words)) < 5 else 0.0)


PLANTED: list[tuple[Judging, str]] = [
    (contains, "all options at once"),
    (length, "a long answer"),
    (empty_is_fine, "an empty answer"),
    (form, "the form of an answer without content"),
    (overlap, "the question"),
    (believes, "a text that addresses the judge"),
    (any_number, "an answer to another task"),
    (repeated, "a repeated word"),
]


@pytest.mark.parametrize(("judge", "attack"), PLANTED)
def test_a_planted_hole_is_found_with_an_example(judge: Judging, attack: str) -> None:
    found = {hole.attack: hole for hole in holes(judge)}
    assert attack in found
    assert found[attack].scored >= 10 and found[attack].line.startswith(f"{attack} scores for ")
    assert found[attack].remedy and "\n" not in found[attack].line


def last_word(task: Task, output: WorkflowOutput) -> bool:
    return bool(output.response.split()[-1:] == [task.metadata["answer"]])


def exact_part(task: Task, output: WorkflowOutput) -> JudgeOutput:
    right = output.response.strip().rpartition(" ")[2] == task.metadata["answer"]
    return JudgeOutput(reward=0.1 * bool(output.response.strip()) + 0.9 * right, is_success=right)


def only_number(task: Task, output: WorkflowOutput) -> float:
    return float(re.findall(r"\d+", output.response) == [task.metadata["answer"]])


def penalising(task: Task, output: WorkflowOutput) -> float:
    return 1.0 if last_word(task, output) else -1.0


SOUND: list[Judging] = [last_word, exact_part, only_number, penalising]


@pytest.mark.parametrize("judge", SOUND)
def test_a_sound_judge_raises_none(judge: Judging) -> None:
    assert holes(judge) == []


def test_a_constant_answer_that_many_tasks_share_is_no_hole() -> None:
    choices = [Task(f"c{i}", "Which: A, B, C or D?", (), {"answer": "ABCD"[i % 4]}) for i in range(12)]
    assert holes(last_word, choices) == []


def test_a_judge_that_fails_on_an_attack_is_no_hole() -> None:
    def strict(task: Task, output: WorkflowOutput) -> float:
        if not output.response.startswith("The answer is"):
            raise ValueError("not an answer")
        return float(output.response.endswith(f" {task.metadata['answer']}"))

    assert holes(strict) == []
