"""Episodes of a library's environment in programs of their own: rewards, refusals, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import ConfigError, Task, load_run
from ajet.cli import run_program
from ajet.interfaces.workflow import WorkflowFailed
from ajet_environments import LibraryTasks, LibraryWorkflow, workers
from tests.plugins.environments.libraries import Unanswered, cancel_episodes, processes_with

pytestmark = pytest.mark.models("starter")

ABOUT = {
    "library": "fake",
    "venv": sys.prefix,
    "variables": {"PYTHONPATH": str(Path(__file__).parent / "fake")},
}


def about(what: str = "") -> dict[str, Any]:
    return {**ABOUT, "options": {"what": what}}


def task(what: str = "", index: int = 1) -> Task:
    return Task(
        str(index), f"What is {index} + {index}?", metadata={"environment": {**about(what), "index": index}}
    )


@pytest.fixture
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No process of an environment, and no folder of one, is there in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert not list(folder.glob("ajet-environment-*"))
    assert not marked()


def marked() -> list[str]:
    """The processes that environments' programs of this test have started: their temporary folders are in its own."""
    return processes_with(f"TMPDIR={tempfile.gettempdir()}/ajet-environment-".encode())


def check(folder: Path, what: str, answers: list[Any], first: int = 3, **sections: Any) -> list[Any]:
    """The episodes of `ajet check` on the first of three tasks, with scripted answers."""
    (folder / "agent.py").write_text(
        "from pathlib import Path\n"
        "from ajet.interfaces.reader import SelectingReader\n"
        "from tests.plugins.environments.test_episodes import task\n"
        "class Tasks(SelectingReader):\n"
        "    name = 'fake'\n"
        f"    def source(self): return [task({what!r}, n) for n in range(1, 4)]\n"
    )
    job = {
        "task": {"reader": {"type": f"{folder}/agent.py:Tasks"}},
        "workflow": {"type": "library"},
        "model": "starter",
        "rollout": {"retries": 0},
        **sections,
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "answers.yaml").write_text(yaml.safe_dump(answers))
    options = ["--answers", str(folder / "answers.yaml"), "--first", str(first), "--group-size", "1"]
    run_program(["check", str(folder / "job.yaml"), *options])
    (run,) = folder.glob("runs/*-check")
    return sorted(load_run(run).episodes(), key=lambda episode: episode.task)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.kept
def test_the_librarys_reward_is_the_episodes_and_its_calls_are_the_episodes_calls(folder: Path) -> None:
    episodes = check(folder, "", [{"when": "2 + 2", "say": "It is 4."}, {"say": "It is 7."}])
    assert [episode.failure for episode in episodes] == [None] * 3
    assert [episode.reward for episode in episodes] == [0.0, 1.0, 0.0]
    assert [episode.response for episode in episodes] == ["It is 7.", "It is 4.", "It is 7."]
    assert [episode.calls for episode in episodes] == [1, 1, 1]


@pytest.mark.whole
def test_it_keeps_to_the_contract_of_workflows(check_workflow: Any, nothing_left: None) -> None:
    check_workflow(LibraryWorkflow(), tasks=[task("", 1), task("", 2)], answer="4")


@pytest.mark.slow
def test_after_200_cancelled_episodes_no_process_socket_or_folder_is_left(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SECONDS_TO_RELEASE", 1.0)
    draw = random.Random(0)
    kinds = ("", "hangs", "holds on", "is not valid")
    # At any moment: before there is a program, while it starts, and while the episode runs.
    cancel_episodes(
        [task(kinds[number % 4]) for number in range(200)], at_once=10, moment=lambda: draw.uniform(0, 1.5)
    )


@pytest.mark.whole
def test_a_program_is_used_for_further_episodes(nothing_left: None) -> None:
    async def pids() -> set[str]:
        found = set()
        pool = workers.Workers()
        for _ in range(3):
            answer = await pool.run(about("is not valid"), {"do": "tasks", "count": 1})
            assert answer["tasks"]
            found |= set(marked())
        await pool.end()
        return found

    assert len(asyncio.run(pids())) == 1


def hostile(what: str, count: int) -> list[Any]:
    """The answers to, or failures of, episodes of an environment that runs what a model has written."""

    async def run() -> list[Any]:
        pool, found = workers.Workers(), []
        model = {"base_url": "http://127.0.0.1:1/v1", "api_key": "k", "name": "m"}
        for index in range(count):
            asked = {"do": "run", "index": index, "model": model, "judge": None, "variables": {}}
            try:
                found.append((await pool.run({**about(what), "library": "hostile"}, asked))["response"])
            except WorkflowFailed as failure:
                found.append(failure.cause)
        await pool.end()
        return found

    return asyncio.run(run())


@pytest.mark.whole
def test_what_an_environment_runs_cannot_answer_in_its_place(nothing_left: None) -> None:
    assert hostile("child", 3) == ["honest 0", "honest 1", "honest 2"]


@pytest.mark.whole
def test_a_program_that_sends_another_line_is_ended_and_shifts_no_later_reward(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SECONDS_TO_RELEASE", 0.2)
    assert hostile("here", 3) == ["forged", "honest 1", "honest 2"]


@pytest.mark.whole
@pytest.mark.parametrize(
    "what, cause, said",
    [
        ("is not valid", "environment", "the sandbox has failed"),
        ("dies", "ended", "ended without an answer"),
        ("http://api.openai.com/any", "environment", "asks a model at api.openai.com itself.*workflow.judge"),
        ("http://127.0.0.1:9/v1", "environment", "asks a model at 127.0.0.1:9 itself.*workflow.judge"),
        ("asks a judge", "environment", "OPENAI_BASE_URL"),  # no address of ours, nor the user's
    ],
)
def test_an_episode_without_a_valid_reward_has_failed_and_does_not_count_as_zero(
    what: str, cause: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    (episode,) = check(folder, what, [{"say": "4"}], first=1)
    assert episode.failure == f"workflow:{cause}" and "\n" not in episode.error
    assert pytest.raises(AssertionError, match=said).matches(AssertionError(episode.error))


@pytest.mark.whole
def test_what_an_environment_asks_a_model_for_its_reward_is_answered_by_a_frozen_target_and_not_trained(
    folder: Path,
) -> None:
    (folder / "grader.yaml").write_text('- say: "2, 4 or 6 is right."')
    frozen = {"type": "script", "path": str(folder / "grader.yaml")}
    targets = {"main": {}, "grader": {"agents": ["none"], "frozen_model": frozen}}
    answers, workflow = [{"say": "It is 8."}], {"type": "library", "judge": "grader"}
    (episode,) = check(folder, "asks a judge", answers, first=1, targets=targets, workflow=workflow)
    assert (episode.failure, episode.reward) == (None, 1.0)
    (timeline,) = episode.timelines
    assert episode.calls == 2 and "It is 8." in timeline.text and "6 is right" not in timeline.text


@pytest.mark.whole
def test_a_judge_that_is_trained_is_refused(folder: Path) -> None:
    workflow = {"type": "library", "judge": "main"}
    given: Any = {"first": 1, "targets": {"main": {}}, "workflow": workflow}
    (episode,) = check(folder, "asks a judge", [{"say": "4"}], **given)
    assert episode.failure == "workflow:judge" and "not a target with a frozen_model" in episode.error


@pytest.mark.whole
@pytest.mark.parametrize(
    "fields, said",
    [
        (
            {"venv": "/nowhere"},
            "/nowhere/bin/python: No such file.*Name the folder of an environment in which inspect",
        ),
        (
            {"options": {"task": "nowhere:f"}},
            "inspect cannot open it: ModuleNotFoundError: No module named 'inspect_ai'",
        ),
    ],
)
def test_an_environment_that_cannot_be_opened_is_said_in_one_line(
    fields: dict[str, Any], said: str, nothing_left: None
) -> None:
    given = {"library": "inspect", "venv": sys.prefix, "options": {"task": "a:b"}, **fields}
    with pytest.raises(ConfigError, match=said) as caught:
        list(LibraryTasks(**given).tasks())
    assert "\n" not in str(caught.value)


def test_tasks_of_another_reader_are_refused(nothing_left: None) -> None:
    async def run() -> None:
        async with LibraryWorkflow().open() as live:
            await live.execute(Task("one", "What?"), Unanswered())  # type: ignore[arg-type]

    with pytest.raises(WorkflowFailed, match="read tasks with the reader library"):
        asyncio.run(run())
