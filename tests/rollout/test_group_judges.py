"""Judges of whole groups: when they are asked, what they see, and what their failures cost."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import openai
import pytest

from ajet.interfaces.judge import GroupJudge
from ajet.learning.algorithms import GRPO
from ajet.learning.rollouts import RolloutSource, reusable
from ajet.learning.settings import TrainSettings
from ajet.learning.task_selector import Shuffled
from ajet.rollout.recorder import JOURNAL, RunRecorder, live_lines
from ajet.testing import ScriptedEngine
from ajet.types import EpisodeView, JudgeOutput, Task

CLIENT: Any = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)


async def ask(text: str) -> str:
    answer = await CLIENT.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


def numbered(request: Any, prompt: str) -> str:
    """Each member's own answer: the last digit of its episode's id."""
    return request.key[0].rsplit("/", 1)[1]


async def asks_once(task: Any) -> str:
    return await ask(task.query)


class Ranked(GroupJudge):
    """Reward by rank of the response's length and value within the group; remembers what it saw."""

    name = "ranked"
    seen: list[tuple[str, list[EpisodeView]]] = []  # noqa: RUF012 - pydantic copies it

    async def score_group(
        self, task: Task, episodes: Sequence[EpisodeView]
    ) -> Sequence[JudgeOutput | Exception | None]:
        self.seen.append((task.id, list(episodes)))
        responses = sorted(str(e.output.response) for e in episodes if not e.failure)
        return [
            None if e.failure else JudgeOutput(float(responses.index(str(e.output.response))))
            for e in episodes
        ]


def test_the_members_of_a_complete_group_are_judged_together(bench, tokenizer) -> None:
    judge = Ranked()
    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(asks_once, judge, tasks=3, group_size=4)
    assert sorted(task for task, _ in judge.seen) == ["t0", "t1", "t2"], "once a group"
    assert all([e.member for e in group] == [0, 1, 2, 3] for _, group in judge.seen)
    assert [e.reward for e in episodes] == [0.0, 1.0, 2.0, 3.0] * 3


def test_members_that_failed_are_seen_too_and_stay_failed(bench, tokenizer) -> None:
    async def flaky(task: Any) -> str:
        answer = await ask(task.query)
        if answer == "2":
            raise KeyError("lost")
        return answer

    judge = Ranked()
    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(flaky, judge, tasks=2, group_size=4)
    for _, group in judge.seen:
        assert [e.failure for e in group] == [None, None, "workflow:KeyError", None]
    assert [e.failure for e in episodes] == [None, None, "workflow:KeyError", None] * 2
    assert [e.reward for e in episodes if not e.failure] == [0.0, 1.0, 2.0] * 2


def test_a_group_is_judged_only_when_its_slowest_member_has_ended(bench, tokenizer) -> None:
    ended: list[float] = []

    async def uneven(task: Any) -> str:
        answer = await ask(task.query)
        await asyncio.sleep(0.1 * int(answer))
        ended.append(time.monotonic())
        return answer

    class Late(Ranked):
        async def score_group(self, task: Any, episodes: Any) -> Any:
            assert len(ended) == 4
            return await super().score_group(task, episodes)

    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(uneven, Late(), group_size=4)
    assert [e.failure for e in episodes] == [None] * 4


def test_groups_larger_than_the_concurrency_are_complete_all_the_same(bench, tokenizer) -> None:
    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(
        asks_once, Ranked(), tasks=3, group_size=8, concurrency=2
    )
    assert [e.reward for e in episodes] == [float(i) for i in range(8)] * 3


def test_a_group_of_which_all_failed_is_not_judged(bench, tokenizer) -> None:
    async def broken(task: Any) -> str:
        raise KeyError(await ask(task.query))

    judge = Ranked()
    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(broken, judge, group_size=3)
    assert [e.failure for e in episodes] == ["workflow:KeyError"] * 3 and judge.seen == []


def hangs(task: Task, episodes: Sequence[EpisodeView]) -> Any:
    return asyncio.sleep(60)


def raises(task: Task, episodes: Sequence[EpisodeView]) -> Any:
    raise LookupError("no rule for this group")


async def too_few(task: Task, episodes: Sequence[EpisodeView]) -> Any:
    return [JudgeOutput(1.0)]


async def none_at_all(task: Task, episodes: Sequence[EpisodeView]) -> Any:
    return [None] * len(episodes)


@pytest.mark.parametrize(
    ("fault", "failure", "error"),
    [
        (hangs, "judge:timeout", "no verdict within 0.3 s"),
        (raises, "judge:LookupError", "no rule for this group"),
        (too_few, "judge:ValueError", "returned 1 verdicts for a group of 3"),
        (none_at_all, "judge:ValueError", "gave no verdict"),
    ],
)
def test_a_failing_group_judge_costs_that_group_and_no_other(
    bench, tokenizer, fault: Callable[..., Any], failure: str, error: str
) -> None:
    class Fails(Ranked):
        def score_group(self, task: Any, episodes: Any) -> Any:
            return fault(task, episodes) if task.id == "t1" else super().score_group(task, episodes)

    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(
        asks_once, Fails(), tasks=3, group_size=3, judge_timeout=0.3
    )
    assert [e.failure for e in episodes] == [None] * 3 + [failure] * 3 + [None] * 3
    assert all(error in e.error for e in episodes[3:6])


def test_an_exception_in_place_of_a_verdict_fails_that_member_only(bench, tokenizer) -> None:
    class Picky(Ranked):
        async def score_group(self, task: Any, episodes: Any) -> Any:
            verdicts = list(await super().score_group(task, episodes))
            return [verdicts[0], ValueError("illegible"), verdicts[2]]

    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(asks_once, Picky(), group_size=3)
    assert [e.failure for e in episodes] == [None, "judge:ValueError", None]
    assert "illegible" in episodes[1].error


def test_a_group_judges_own_calls_are_not_recorded(bench, tokenizer) -> None:
    class Asks(Ranked):
        async def score_group(self, task: Any, episodes: Any) -> Any:
            with pytest.raises(openai.APIConnectionError):  # its own endpoint, where nobody listens
                await ask("grade these")
            return await super().score_group(task, episodes)

    episodes = bench(ScriptedEngine(tokenizer, numbered)).run(asks_once, Asks(), group_size=2)
    assert [e.failure for e in episodes] == [None, None]
    assert [len(e.record.exchanges) for e in episodes] == [1, 1]


def test_an_episode_that_is_alone_is_a_group_of_one() -> None:
    from ajet.types import WorkflowOutput

    judge = Ranked()
    verdict = asyncio.run(judge.judge(Task("t"), WorkflowOutput(response="7"), EpisodeView("e", "t", 0, 0)))
    assert verdict == JudgeOutput(0.0)
    assert judge.seen[0][1][0].output.response == "7"


def source(made: Any, tmp_path: Any, judge: Ranked, **more: Any) -> RolloutSource:
    settings = TrainSettings(batch_size=2, steps=1)
    rollout = made.rollout(asks_once, judge, group_size=3, **more.pop("rollout", {}))
    tasks = [Task(f"t{i}", f"question {i}") for i in range(4)]
    return RolloutSource(
        rollout=rollout,
        selector=Shuffled(tasks, 2, 0),
        algorithm=GRPO(),
        settings=settings,
        seed=0,
        recorder=RunRecorder(tmp_path),
        on_episode=lambda *place: None,
        **more,
    )


def test_a_resumed_step_judges_whole_groups_again_and_the_journal_tells_of_what_is_trained(
    bench, tokenizer, tmp_path
) -> None:
    made = bench(ScriptedEngine(tokenizer, numbered))
    before = source(made, tmp_path, Ranked())
    asyncio.run(before.batch(1, 0))
    episodes = {e.plan.id: e for e in asyncio.run(_episodes(made))}
    assert {line["id"] for line in live_lines(tmp_path / JOURNAL)} == set(episodes)

    judge = Ranked()
    resumed = source(made, tmp_path, judge)
    finished = dict(list(episodes.items())[:4])  # one whole group, and one member of the other
    kept = reusable(resumed.rollout, finished)
    resumed.recorder.supersede(1, kept)
    batch = asyncio.run(replace(resumed, reusable=kept).batch(1, 0))
    assert [len(group) for _, group in judge.seen] == [3], "the other group is run anew, whole"
    assert batch.metrics["episodes_reused"] == 3
    lines = (json.loads(line) for line in (tmp_path / JOURNAL).read_text().splitlines())
    told = [line["id"] for line in lines if line["type"] == "episode"]
    assert sorted(told) == sorted([*episodes, *(episodes.keys() - kept.keys())]), (
        "what ran again is told again"
    )
    assert {line["id"] for line in live_lines(tmp_path / JOURNAL)} == set(episodes)


async def _episodes(made: Any) -> Any:
    from ajet.learning.rollouts import plan_step

    tasks = [Task(f"t{i}", f"question {i}") for i in range(4)]
    plans = plan_step(tasks, 1, batch_size=2, group_size=3, seed=0)
    rollout = made.rollout(asks_once, Ranked(), group_size=3)
    return await rollout.run(plans, lambda episode: None)


def test_oversampling_takes_the_groups_that_were_judged_first(bench, tokenizer, tmp_path) -> None:
    async def slow_task(task: Any) -> str:
        if task.id == "t0":
            await asyncio.sleep(120)
        return await ask(task.query)

    made = bench(ScriptedEngine(tokenizer, numbered))
    judge = Ranked()
    rollout = made.rollout(slow_task, judge, group_size=3, oversample=2)
    tasks = [Task(f"t{i}", f"question {i}") for i in range(4)]
    recorder = RunRecorder(tmp_path)
    s = RolloutSource(
        rollout=rollout,
        selector=Shuffled(tasks, 2, 0),
        algorithm=GRPO(),
        settings=TrainSettings(batch_size=2, steps=1),
        seed=0,
        recorder=recorder,
        on_episode=lambda *p: None,
    )
    started = time.monotonic()
    batch = asyncio.run(s.batch(1, 0))
    assert time.monotonic() - started < 60
    assert batch.metrics["groups_unused"] >= 1 and "t0" not in [task for task, _ in judge.seen]
