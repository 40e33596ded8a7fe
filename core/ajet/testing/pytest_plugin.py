"""AgentJet's pytest plugin: a fixture that replays recorded episodes of your agent, and fixtures that check your plugin, one
test for each part of its contract.

    def test_my_agent(recording): assert recording("failing.json").replay("my_agent:run", judge="my_agent:judge").reward == 1

    def test_my_judge(check_judge): check_judge(MyJudge())
    def test_my_workflow(check_workflow): check_workflow(MyWorkflow())
    def test_my_reader(check_reader): check_reader(MyReader())
    def test_my_engine(check_engine): check_engine(lambda: MyEngine())
    def test_my_backbone(check_backbone, tmp_path): check_backbone("mine", model="…", folder=tmp_path)

Nothing is imported before a test uses a fixture.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ajet.interfaces.engine import Engine
    from ajet.interfaces.judge import Judge
    from ajet.interfaces.reader import Reader
    from ajet.interfaces.workflow import WorkflowPlugin
    from ajet.testing.recordings import RecordingFile
    from ajet.types import Task


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each check of the kind."""
    for fixture in {"check_judge", "check_engine", "check_backbone", "check_workflow"} & set(
        metafunc.fixturenames
    ):
        checks = _checks(fixture)
        names = [check.__name__.removeprefix("check_") for check in checks]
        metafunc.parametrize(fixture, checks, ids=names, indirect=True)


def _checks(fixture: str) -> Sequence[Callable[..., Any]]:
    if fixture == "check_judge":
        from ajet.testing.judges import JUDGE_CHECKS

        return JUDGE_CHECKS
    if fixture == "check_engine":
        from ajet.testing.conformance import ENGINE_CHECKS, check_close

        return [*ENGINE_CHECKS, check_close]
    if fixture == "check_workflow":
        from ajet.testing.workflows import WORKFLOW_CHECKS

        return WORKFLOW_CHECKS
    from ajet.testing.backbones import BACKBONE_CHECKS

    return BACKBONE_CHECKS


@pytest.fixture
def recording(request: pytest.FixtureRequest) -> Callable[..., RecordingFile]:
    """``recording(file, ignore=[…])``: a recording to replay, see `ajet.testing.recordings.RecordingFile`. A relative path is
    relative to the folder of the test's file."""
    from ajet.testing.recordings import RecordingFile

    def find(file: str | os.PathLike[str], ignore: Sequence[str] = ()) -> RecordingFile:
        return RecordingFile(request.path.parent / file, ignore)

    return find


@pytest.fixture
def check_judge(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``check_judge(judge, task=…, responses=…, …)``: one check of `ajet.testing.judges.JudgeSubject`."""
    from ajet.testing.judges import JudgeSubject

    def check(judge: Judge, **settings: Any) -> None:
        asyncio.run(request.param(JudgeSubject(judge, **settings)))

    return check


@pytest.fixture
def check_workflow(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``check_workflow(workflow, tasks=…, answer=…, …)``: one check of `ajet.testing.workflows.WorkflowSubject`."""
    from ajet.testing.workflows import WorkflowSubject

    def check(workflow: WorkflowPlugin, **settings: Any) -> None:
        request.param(WorkflowSubject(workflow, **settings))

    return check


@pytest.fixture
def check_engine(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``check_engine(make, prompts=…, …)``: one check of `ajet.testing.conformance.Subject`, on the started
    engine that ``make()`` returns."""
    from ajet.testing.conformance import Subject

    def check(make: Callable[[], Engine], **settings: Any) -> None:
        async def run() -> None:
            engine = make()
            await engine.start()
            try:
                await request.param(Subject(engine, **settings))
            finally:
                await engine.close()

        asyncio.run(run())

    return check


@pytest.fixture
def check_backbone(request: pytest.FixtureRequest) -> Callable[..., None]:
    """``check_backbone(name, model=…, folder=…, …)``: one check of `ajet.testing.backbones.BackboneSubject`."""
    from ajet.testing.backbones import BackboneSubject

    def check(name: str, **settings: Any) -> None:
        request.param(BackboneSubject(name, **settings))

    return check


@pytest.fixture
def check_reader() -> Callable[[Reader], list[Task]]:
    """``check_reader(reader)``: its tasks, after `ajet.testing.readers.check_reader`."""
    from ajet.testing.readers import check_reader

    return check_reader
