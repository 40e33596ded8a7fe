"""A runner's part: a group is run and judged as a whole, and its rows and lines leave the process; without Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ajet import GroupJudge, JudgeOutput, WorkflowOutput
from ajet.capture.session import current_session
from ajet.interfaces.workflow import make_workflow
from ajet.job.job import Job
from ajet.learning.rollouts import plan_group
from ajet.rollout.journal import JournalLine
from ajet.rollout.summary import rewards_differ
from ajet.runs.runtime import open_runtime, training_policy
from ajet.testing import ScriptedEngine
from ajet.types import Task
from ajet_local.starter.calculator import Calculator
from ajet_verl.dataset import PlannedGroup
from ajet_verl.recorder import LINES, Recorder
from ajet_verl.rows import GroupRows
from ajet_verl.runner import Unit, UnitEnded, Units
from tests.patience import PATIENCE
from tests.plugins.verl.test_alignment import job_of

MEMBERS = 4


@dataclass
class Outside:
    """What a runner's process sends to others."""

    rows: dict[str, GroupRows] = field(default_factory=dict)
    lines: dict[str, Sequence[JournalLine]] = field(default_factory=dict)
    ended: list[str] = field(default_factory=list)

    async def put(self, rows: GroupRows, step: int) -> None:
        assert step == 3
        self.rows[rows.keys[0].split("_")[0]] = rows

    async def hold(self, unit: str, lines: Sequence[JournalLine]) -> None:
        self.lines[unit] = lines


class Ranks(GroupJudge):
    """Rewards members by their numbers; sees failed ones too."""

    name = "ranks"

    async def score_group(self, task: Any, episodes: Any) -> Any:
        assert [e.member for e in episodes] == list(range(MEMBERS))
        assert [e.member for e in episodes if e.failure] == [2]
        return [None if e.failure else JudgeOutput(reward=e.member / 10) for e in episodes]


def unit_of(job: Job, name: str, position: int = 0) -> Unit:
    planned = PlannedGroup(3, position, 8 + position, Task(f"t{position}", "What is 1 + 2?"))
    plans = plan_group(planned.task, planned.step, position, MEMBERS, job.config.run.seed)
    return Unit(name, tuple(plans), training_policy(job), "train", planned)


def with_units(
    folder: Path,
    workflow: Any,
    main: Callable[[Units, Job, Outside], Awaitable[None]],
    judge: Any = None,
    row_limit: float = 4096,
) -> Outside:
    """Run ``main`` with units over a scripted engine."""
    job = job_of(folder, rollout={"retries": 1})
    job = replace(job, workflow=make_workflow(workflow, "the test's"), judge=judge or job.judge)
    outside = Outside()
    tokenizer, model_type = Calculator().tokenizer(0)
    engine = ScriptedEngine(tokenizer, lambda request, prompt: "3", model_type=model_type)

    async def whole() -> None:
        async with open_runtime(job, engine=engine) as runtime, asyncio.timeout(PATIENCE):
            units = Units(
                runtime,
                row_limit=row_limit,
                excused=lambda: 0.0,
                let_go=outside.ended.append,
                hold=outside.hold,
                put=outside.put,
            )
            await main(units, job, outside)

    asyncio.run(whole())
    return outside


async def ask(tuner: Any, text: str) -> str:
    client = tuner.as_openai_client()
    answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return answer.choices[0].message.content or ""


async def run_with_a_failure(task: Any, tuner: Any) -> WorkflowOutput:
    text = await ask(tuner, task.query)
    if current().endswith("/2"):
        raise RuntimeError("the third member fails")
    for number in range(2):
        text = await ask(tuner, f"{number}: {text}")  # further timelines
    return WorkflowOutput(response=text)


def current() -> str:
    """The id of the episode that runs here."""
    session = current_session.get()
    assert session is not None
    return session.episode


def test_a_group_is_judged_as_a_whole_and_only_numbers_come_back(tmp_path: Path) -> None:
    found: list[UnitEnded] = []

    async def main(units: Units, job: Job, outside: Outside) -> None:
        ended = await units.run(unit_of(job, "uid"), 64)
        assert ended is not None
        found.append(ended)

    outside = with_units(tmp_path, run_with_a_failure, main, Ranks())
    (ended,) = found
    assert [m.id.rsplit("/")[-1] for m in ended.members] == ["0", "1", "2", "3"]
    assert [m.reward for m in ended.members] == [0, 0.1, 0, 0.3]
    assert [m.failure for m in ended.members] == [None, None, "workflow:RuntimeError", None]
    assert "the third member fails" in ended.members[2].error and rewards_differ(ended.members)
    assert all(m.to_train == m.sampled > 0 for m in ended.members)
    expected = {f"uid_{member}_{number}" for member in (0, 1, 3) for number in range(3)}
    assert set(ended.rows) == set(outside.rows["uid"].keys) == expected
    lines = [json.loads(line.at(3)) for line in outside.lines["uid"]]
    assert [(line["id"], line["reward"], line["step"]) for line in lines] == [
        (m.id, m.reward, 3) for m in ended.members
    ]
    assert lines[2]["attempt"] == 1, "it was tried again"
    assert sorted(outside.ended) == sorted([*(m.id for m in ended.members), ended.members[2].id])


def test_too_long_rows_are_dropped_and_a_group_without_rows_says_why(tmp_path: Path) -> None:
    found: list[UnitEnded | None] = []

    async def main(units: Units, job: Job, outside: Outside) -> None:
        found.append(await units.run(unit_of(job, "uid"), 64))

    outside = with_units(tmp_path, run_with_a_failure, main, Ranks(), row_limit=4)
    assert found[0] is not None and not found[0].rows and not outside.rows
    assert "filters dropped all" in found[0].why and len(outside.lines["uid"]) == MEMBERS


def test_attempts_of_all_units_share_the_slots_and_leaving_them_is_news(tmp_path: Path) -> None:
    running, most = 0, 0
    left: list[dict[str, int]] = []

    async def workflow(task: Any, tuner: Any) -> WorkflowOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ask(tuner, task.query)
        await asyncio.sleep(0.01)
        running -= 1
        return WorkflowOutput(reward=1.0)

    async def main(units: Units, job: Job, outside: Outside) -> None:
        async def follow() -> None:
            while True:
                left.append(await units.news(0.2))

        following = asyncio.create_task(follow())
        names = [f"u{n}" for n in range(5)]
        await asyncio.gather(*(units.run(unit_of(job, name, n), 3) for n, name in enumerate(names)))
        while sum(sum(news.values()) for news in left) < 5 * MEMBERS:
            await asyncio.sleep(0.01)
        following.cancel()
        assert {name: sum(news.get(name, 0) for news in left) for name in names} == dict.fromkeys(
            names, MEMBERS
        )

    with_units(tmp_path, workflow, main)
    assert most == 3 and len(left) < 5 * MEMBERS, "several are reported at once"


def test_a_cancelled_group_ends_at_once_and_sends_nothing(tmp_path: Path) -> None:
    begun: list[str] = []
    ended: list[str] = []
    all_wait = asyncio.Event()

    async def workflow(task: Any, tuner: Any) -> WorkflowOutput:
        await ask(tuner, task.query)
        begun.append(current())
        if len(begun) == MEMBERS:
            all_wait.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(current())
        return WorkflowOutput(reward=1.0)

    async def main(units: Units, job: Job, outside: Outside) -> None:
        running = asyncio.create_task(units.run(unit_of(job, "uid"), 64))
        await all_wait.wait()
        await units.cancel("uid")
        assert await running is None
        await units.cancel("uid")  # it has ended

    outside = with_units(tmp_path, workflow, main)
    assert len(ended) == MEMBERS and not outside.rows and not outside.lines


def line(name: str) -> JournalLine:
    return JournalLine(name, f'{{"type": "episode", "id": "{name}", "phase": "train"')


def written(folder: Path) -> list[tuple[str, int]]:
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    return [(found["id"], found["step"]) for found in map(json.loads, lines) if found["type"] == "episode"]


def test_lines_wait_for_their_step_also_over_a_checkpoint_and_a_rerun_replaces_them(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path / "one"), (), (), 1, False)
    recorder.hold("a", [line("a0"), line("a1 of a runner that died")])
    recorder.hold("a", [line("a0"), line("a1")])
    recorder.hold("b", [line("b0")])
    recorder.hold("cancelled", [line("c0")])
    recorder.hold("running", [line("r0")])
    recorder.drop(["cancelled"])
    recorder.write(["a", "cancelled", "unknown"], 4)
    recorder.write(["a"], 5)
    assert written(tmp_path / "one") == [("a0", 4), ("a1", 4)]
    recorder.keep_lines(str(tmp_path), ["b"])
    assert (tmp_path / LINES).exists()
    resumed = Recorder(str(tmp_path / "two"), (), (), 1, False)
    resumed.restore_lines(str(tmp_path))
    resumed.write(["b", "running"], 6)
    assert written(tmp_path / "two") == [("b0", 6)]
