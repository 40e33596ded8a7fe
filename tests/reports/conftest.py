"""A run folder as a run leaves it, made of episodes on a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

import ajet
from ajet.interfaces.progress import Silent
from ajet.reports.credit import run_credit
from ajet.reports.episode import EpisodeReport, episode_report
from ajet.reports.folder import RecordedRun, read_run
from ajet.reports.html import written
from ajet.reports.run_summary import RunSummary, summarise
from ajet.reports.token_text import TokenText
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.recorder import RunRecorder
from ajet.runs.run_dir import keep_tokenizer
from ajet.testing import ScriptedEngine
from ajet.tracker.record import EpisodeRecord
from ajet.types import Task, WorkflowOutput

CLIENT = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)
JOB = {
    "workflow": "agent.py:run",
    "model": "starter",
    "backbone": {"name": "local"},
    "train": {"steps": 4, "algorithm": {"type": "grpo"}, "filters": [], "max_timelines": None},
    "run": {"seed": 0},
}


def page(summary: RunSummary, reports: Sequence[EpisodeReport], *, everything: bool) -> str:
    """The HTML file of a run with these episodes."""
    makers = {report.header.id: lambda report=report: report for report in reports}
    return "".join(written(summary, makers, everything=everything))


async def ask(messages: Sequence[Any], **options: Any) -> Any:
    """One call; the assistant's message."""
    return (
        (await CLIENT.chat.completions.create(model="m", messages=list(messages), **options))
        .choices[0]
        .message
    )


async def two_turns(task: Any) -> str:
    """A conversation of two turns, and a greedy critic."""
    messages: list[Any] = [{"role": "user", "content": task.query}]
    with ajet.label(agent="solver"):
        messages.append(await ask(messages))
        messages.append({"role": "user", "content": "sure?"})
        answer = await ask(messages)
    with ajet.label(agent="critic"):
        await ask([{"role": "user", "content": "good?"}], temperature=0)
    return answer.content or ""


async def squeezing(task: Any) -> str:
    """A conversation of two turns whose first answer comes back with fewer spaces."""
    messages: list[Any] = [{"role": "user", "content": task.query}]
    first = (await ask(messages)).content.replace("  ", " ")
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "sure?"}]
    return (await ask(messages)).content or ""


def by_member(task: Any, output: Any, episode: Any) -> float:
    return float(episode.member)


@dataclass
class Folder:
    """A run folder that tests write into and read."""

    dir: Path

    def write(self, episodes: Sequence[Episode], *, phase: str = "train", step: int = 1) -> Folder:
        recorder = RunRecorder(self.dir)
        for episode in episodes:
            name = episode.plan.id
            if step != 1:
                name = name.replace("1.", f"{step}.", 1)
            if phase == "validation":
                name = f"validation@{step}/{episode.plan.task.id}"
            recorder.episode(replace(episode, plan=replace(episode.plan, id=name)), phase=phase, step=step)
        recorder.close()
        return self

    def metrics(self, phase: str, step: int, **values: float) -> None:
        recorder = RunRecorder(self.dir)
        recorder.metrics(phase, step, values)
        recorder.close()

    def read(self) -> RecordedRun:
        return read_run(self.dir)

    def summary(self) -> RunSummary:
        run = self.read()
        return summarise(run, run_credit(run))

    def report(self, episode: str) -> EpisodeReport:
        run = self.read()
        return episode_report(run, run.find(episode), run_credit(run), TokenText(run.dir))


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Any) -> Folder:
    """An empty run folder with a job and a tokenizer."""
    run_dir = tmp_path / "runs" / "20250131-120000"
    run_dir.mkdir(parents=True)
    (run_dir / "job.yaml").write_text(yaml.safe_dump(JOB))
    keep_tokenizer(run_dir, tokenizer, Silent())
    return Folder(run_dir)


@pytest.fixture
def live(bench: Any, tokenizer: Any) -> Callable[..., list[Episode]]:
    """Episodes of a workflow; ``answers`` says what the model says."""
    says: list[Any] = []
    made = bench(ScriptedEngine(tokenizer, lambda request, prompt: says[-1](request, prompt)))

    def make(
        workflow: Any = two_turns,
        answers: Any = lambda r, p: "it is 42",
        judge: Any = by_member,
        **options: Any,
    ) -> list[Episode]:
        says.append(answers)
        episodes: list[Episode] = made.run(workflow, judge, **options)
        return episodes

    return make


def blank(name: str, **values: Any) -> Episode:
    """An episode without calls."""
    member = int(name.rpartition("/")[2])
    plan = Plan(name, name, Task(name.split("/")[1]), member, 0)
    return replace(Episode(plan, 0, WorkflowOutput(), EpisodeRecord()), **values)
