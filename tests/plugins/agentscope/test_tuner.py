"""Functions of AgentScope's tuner as workflows; they need no AgentScope."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.workflow import LoadedWorkflow, load_workflow
from ajet.plugins import load_plugins
from ajet.types import Task, WorkflowOutput
from ajet_agentscope.tuner.config import JudgeOutput
from ajet_agentscope.tuner.config import WorkflowOutput as TunersOutput

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into a folder that is on the path; the path of the file as text."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(name: str, code: str) -> str:
        (tmp_path / name).write_text(code)
        return str(tmp_path / name)

    return make


def load(spec: str) -> LoadedWorkflow:
    return load_workflow(spec, hook=load_plugins().manager.hook)


class Models:
    """A tuner whose AgentScope models are their targets' names, and how they answer."""

    auxiliary = ("critic",)

    def as_agentscope_model(self, target: str = "policy", stream: bool = True) -> str:
        return f"model of {target}, {'streaming' if stream else 'whole answers'}"


@pytest.mark.parametrize(
    ("code", "response"),
    [
        ("async def run(task, model): return model", "model of policy, whole answers"),
        ("def run(task, model): return model", "model of policy, whole answers"),
        (
            "async def run(task: dict, model, auxiliary_models=None): return auxiliary_models",
            {"critic": "model of critic, whole answers"},
        ),
        ("async def run(task, model, auxiliary_models, logger): return logger.name", "ajet.workflow"),
        ("async def run(task, model, logger=None): return task", {"id": "t", "query": "q", "answer": 42}),
    ],
)
def test_a_function_of_agentscopes_tuner_gets_a_dict_and_models(
    write: Write, code: str, response: Any
) -> None:
    workflow = load(f"{write('tuned.py', code)}:run")
    tuner: Any = Models()
    task = Task("t", "q", metadata={"answer": 42})
    assert asyncio.run(workflow.fresh()(task, tuner)) == WorkflowOutput(response=response)


def test_a_number_is_the_reward_as_in_releases_before_1_0_12(write: Write) -> None:
    tuner: Any = Models()
    workflow = load(f"{write('old.py', 'async def run(task, model): return 0.5')}:run")
    assert asyncio.run(workflow.fresh()(Task("t"), tuner)) == WorkflowOutput(reward=0.5)


def test_messages_of_the_logger_are_printed_so_they_are_kept_with_the_episode(
    write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "async def run(task, model, logger): logger.info('step %d', 2)"
    tuner: Any = Models()
    asyncio.run(load(f"{write('logs.py', code)}:run").fresh()(Task("t"), tuner))
    assert capsys.readouterr().out == "step 2\n"


def test_its_output_may_be_of_a_class_of_its_own(write: Write) -> None:
    code = (
        "class WorkflowOutput:\n    reward, response, metrics = 0.5, 'r', {'m': 1.0}\n"
        "async def run(task, model): return WorkflowOutput()\n"
    )
    workflow = load(f"{write('own_output.py', code)}:run")
    tuner: Any = Models()
    expected = WorkflowOutput(reward=0.5, response="r", metrics={"m": 1.0})
    assert asyncio.run(workflow.fresh()(Task("t"), tuner)) == expected


def test_an_instance_may_have_such_a_method_and_other_signatures_are_left_alone(write: Write) -> None:
    code = (
        "class Agent:\n    def execute(self, task, model): return model\nagent = Agent()\n"
        "def run(task, model, temperature=1): return model\n"
    )
    path = write("method.py", code)
    tuner: Any = Models()
    assert asyncio.run(load(f"{path}:agent").fresh()(Task("t"), tuner)) == WorkflowOutput(
        response="model of policy, whole answers"
    )
    assert load(f"{path}:run").fresh()(Task("t"), tuner) is tuner


def test_a_text_among_the_metrics_is_left_out_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    texts: Any = {"won": 1.0, "side": "good", "share": "0.5"}
    for _ in range(2):
        assert TunersOutput(reward=1.0, metrics=texts).metrics == {"won": 1.0, "share": 0.5}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "metrics: 'side' is a text, 'good', and is left out: a metric is a number."
    with pytest.raises(ValueError):
        JudgeOutput(reward=1.0, metrics={"all": [1.0]})
