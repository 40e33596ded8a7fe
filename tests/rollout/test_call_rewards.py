"""Rewards of single calls: from judge or workflow into the journal, or one line that says what is wrong with them."""

from __future__ import annotations

from typing import Any

import openai
import pytest

import ajet
from ajet import Task, WorkflowOutput
from ajet.interfaces.judge import RewardFromWorkflow
from ajet.rollout.journal import episode_from_json, episode_to_json
from ajet.testing import ScriptedEngine

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


async def twice(task: Task) -> str:
    for question in ("one?", "two?"):
        await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": question}])
    return "done"


@pytest.mark.parametrize(
    ("given", "kept"),
    [([0.5, 1], {0: 0.5, 1: 1.0}), ({1: 2}, {1: 2.0}), ((), {}), ({}, {})],
    ids=["all", "some", "none", "no mapping"],
)
def test_they_are_kept_by_the_number_of_the_call(bench: Any, tokenizer: Any, given: Any, kept: Any) -> None:
    def judge(task: Any, output: Any) -> ajet.JudgeOutput:
        return ajet.JudgeOutput(1.0, call_rewards=given)

    (episode,) = bench(ScriptedEngine(tokenizer, lambda r, p: "x")).run(twice, judge)
    again = episode_from_json(episode_to_json(episode, phase="train", step=1), episode.plan)
    assert episode.call_rewards == again.call_rewards == kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0], "call_rewards has 1 rewards, but the episode has 2 calls"),
        (
            {2: 1.0},
            "call_rewards has a reward of the call 2, but the calls of the episode (episode.messages) are 0 to 1",
        ),
        ({"0": 1.0}, "call_rewards has a reward of the call '0'"),
        ({0: float("nan")}, "the reward of call 0 is nan, which is not a finite number"),
    ],
    ids=["too few", "no such call", "no place", "no number"],
)
def test_wrong_ones_fail_their_episode_in_one_line(bench: Any, tokenizer: Any, given: Any, said: str) -> None:
    def judge(task: Any, output: Any) -> ajet.JudgeOutput:
        return ajet.JudgeOutput(1.0, call_rewards=given)

    (episode,) = bench(ScriptedEngine(tokenizer, lambda r, p: "x")).run(twice, judge)
    assert said in episode.error and "\n" not in episode.error


def test_a_workflow_may_return_them(bench: Any, tokenizer: Any) -> None:
    async def workflow(task: Task) -> WorkflowOutput:
        await twice(task)
        return WorkflowOutput(reward=1.0, call_rewards=[0.0, 0.25])

    (episode,) = bench(ScriptedEngine(tokenizer, lambda r, p: "x")).run(workflow, RewardFromWorkflow())
    assert episode.call_rewards == {0: 0.0, 1: 0.25}
