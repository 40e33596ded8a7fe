"""`ajet.run` and its results: objects in place of names, the words of the command line, any event loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet import ConfigError, Judge, JudgeOutput, Reader, Task
from ajet.cli import run_program
from ajet.job.prepare import prepare
from ajet.runs import jobs
from tests.api.asking import ask
from tests.patience import PATIENCE
from tests.tiers import fast

Arguments = dict[str, Any]
Agent = Callable[[Task], Any]
RECORDS = [{"id": "a", "query": "2+2?", "answer": "4"}, {"id": "b", "query": "3+3?", "answer": "6"}]


async def named(task: Task) -> str:
    """An agent that an import leads to."""
    return await ask(task)


def right(task: Task, output: ajet.WorkflowOutput) -> bool:
    """A judge that an import leads to."""
    return bool(output.response == task.metadata["answer"])


def always(task: Task, output: ajet.WorkflowOutput) -> float:
    return 1.0


class Strict(Judge):
    """A judge with a field."""

    points: float = 1.0

    async def judge(self, task: Task, output: Any, episode: Any) -> JudgeOutput:
        success = output.response == task.metadata["answer"]
        return JudgeOutput(self.points * success, success)


def job_of(run: Any) -> Any:
    return yaml.safe_load((run.dir / "job.yaml").read_text())


# ------------------------------------------------------------------ what is accepted


def test_a_function_a_list_and_a_function_judge_run_and_are_kept_in_a_readable_folder(
    debugging: Arguments, agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ajet.run(workflow=agent, judge=lambda task, output: output.response == "4", **debugging)
    assert run.after.accuracy == run.after.reward == 0.5 and run.after["episodes"] == 2
    assert sorted((e.task, e.reward, e.is_success, e.response) for e in run.episodes(step=1)) == [
        ("a", 1.0, True, "4"),
        ("b", 0.0, False, "no idea"),
    ]
    assert {e.messages[0][-1]["content"] for e in run.episodes()} == {"4", "no idea"}
    assert [m["step"] for m in run.metrics] == [1] and run.checkpoint is None
    assert str(run.dir) in repr(run) and "<iframe" in run._repr_html_()
    job = job_of(run)
    assert job["workflow"] == "object:agent.<locals>.local"
    assert job["task"]["reader"] == {"type": "jsonl", "path": str(run.dir / "given_reader.jsonl")}
    assert run_program(["show", str(run.dir)]) == 0
    assert "agent.<locals>.local, grpo" in capsys.readouterr().out


def test_what_can_be_imported_or_built_from_its_fields_is_written_as_such(debugging: Arguments) -> None:
    run = ajet.run(workflow=named, judge=Strict(points=2.0), **debugging)
    job = job_of(run)
    assert job["workflow"] == f"{__name__}:named"
    assert job["judge"] == {"type": f"{__name__}:Strict", "points": 2.0}
    assert run.after.reward == 1.0
    assert job_of(ajet.run(workflow=named, judge=right, **debugging))["judge"]["type"] == f"{__name__}:right"


@pytest.mark.whole
def test_classes_instances_and_judges_that_only_this_process_has_are_taken(
    debugging: Arguments, agent: Agent
) -> None:
    class Flow:
        async def execute(self, task: Task) -> str:
            return str(await agent(task))

    class Own(Strict):
        points: float = 3.0

    for workflow in (Flow, Flow()):
        for judge in (Own, Own(), Own(points=3.0), {"type": "combine", "parts": {"own": {"judge": Own()}}}):
            run = ajet.run(workflow=workflow, judge=judge, **debugging)
            assert max(e.reward for e in run.episodes()) == 3.0, (workflow, judge)


@pytest.mark.whole
def test_tasks_are_records_tasks_a_file_a_mapping_or_a_reader(
    folder: Path, debugging: Arguments, agent: Agent
) -> None:
    class Listed(Reader):
        name = "listed"

        def tasks(self) -> list[Task]:
            return [Task("a", "2+2?", metadata={"answer": "4"})]

    (folder / "tasks.jsonl").write_text(json.dumps(RECORDS[0]) + "\n")
    datasets = pytest.importorskip("datasets")
    given: list[Any] = [
        RECORDS[:1],
        datasets.Dataset.from_list(RECORDS[:1]),
        (Task("a", "2+2?", metadata={"answer": "4"}) for _ in range(1)),
        "tasks.jsonl",
        Path("tasks.jsonl"),
        {"type": "jsonl", "path": "tasks.jsonl"},
        Listed,
        Listed(),
    ]
    for tasks in given:
        run = ajet.run(workflow=agent, judge="exact", **(debugging | {"tasks": tasks}))
        assert [(e.task, e.reward) for e in run.episodes()] == [("a", 1.0)], tasks


def test_a_list_of_records_gives_the_tasks_that_a_file_of_them_gives(
    folder: Path, debugging: Arguments, agent: Agent
) -> None:
    records = [
        {"query": "2+2?", "answer": "4", "level": 1},
        {"messages": [{"role": "user", "content": "hi"}]},
    ]
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    seen: list[Task] = []

    def look(task: Task, output: Any) -> float:
        seen.append(task)
        return 0.0

    for tasks in (records, "tasks.jsonl"):
        ajet.run(workflow=agent, judge=look, **(debugging | {"tasks": tasks}))
    half = len(seen) // 2
    assert seen[:half] == seen[half:] and {task.metadata.get("level") for task in seen} == {1, None}


@pytest.mark.whole
def test_given_tasks_are_kept_in_the_run_folder_unless_json_cannot_hold_them(
    debugging: Arguments, agent: Agent
) -> None:
    chat = ({"role": "user", "content": "hï"},)
    given = [Task("a", "2+2?", metadata={"answer": "4", "level": [1, {"x": None}]}), Task("b", messages=chat)]
    run = ajet.run(workflow=agent, judge=always, **(debugging | {"tasks": given}))
    assert (
        prepare(jobs.job_of({"job": run.dir / "job.yaml", "workflow": agent, "judge": always})).tasks == given
    )
    for metadata in ({"x": (1, 2)}, {"x": object()}, {"x": float("nan")}, {"query": "?"}, {1: 2}):
        given[0] = Task("a", "2+2?", metadata=metadata)
        run = ajet.run(workflow=agent, judge=always, **(debugging | {"tasks": given}))
        assert job_of(run)["task"]["reader"] == {"type": "object:a list of 2 tasks"}, metadata
        with pytest.raises(ConfigError, match=r"job\.yaml: task\.reader: .* a list of 2 tasks.*tasks=…"):
            ajet.run(resume=run.dir, workflow=agent, judge=always, progress=False)


def test_a_job_file_lies_under_the_arguments_and_set_over_them(folder: Path, debugging: Arguments) -> None:
    (folder / "job.yaml").write_text(
        yaml.safe_dump(
            {"workflow": f"{__name__}:named", "judge": "exact", "train": {"steps": 3}, "backbone": "debug"}
        )
    )
    del debugging["backbone"]
    debugging["set"] |= {"train.learning_rate": 2e-4}
    job = job_of(ajet.run("job.yaml", steps=5, seed=7, run_dir="kept", **debugging))
    assert (job["train"]["steps"], job["train"]["learning_rate"], job["run"]["seed"]) == (5, 2e-4, 7)
    assert ajet.load_run("kept").job == job


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workflow": "nowhere:X"}, r"^workflow= nowhere:X: does not import: ModuleNotFoundError"),
        ({"workflow": 3.5}, r"^workflow=: expected a name, such as agent.py:run, or .* .found 3.5."),
        ({"workflow": object()}, r"^workflow= an instance of object: object is not callable"),
        ({"judge": "exct"}, r"^judge=: unknown judge 'exct'; did you mean 'exact'"),
        ({"judge": lambda a, b, c, d: 1.0}, r"^judge= .*<lambda>: "),
        ({"tasks": []}, r"^tasks=: the list is empty"),
        (
            {"tasks": [{"answer": "4"}]},
            r"^tasks=\[0\]: neither 'query' nor 'messages'; the record has 'answer'",
        ),
        ({"tasks": ["2+2?"]}, r"^tasks=\[0\]: is a str"),
        ({"tasks": object()}, r"^tasks=: is a object"),
        ({"weight_decay": 1e-4}, r"^weight_decay=: .* did you mean set=.'train.weight_decay': …."),
        ({"job": {"judge": "exact"}}, r"^job=: is a dict. Give a job file, or the keys of the job by set="),
        ({"tasks": {"query": "2+2?"}}, r"^tasks=: is one dict. Give a list of tasks"),
        ({"reward_funcs": []}, r"^reward_funcs=: ajet.run has no such argument; did you mean 'judge'"),
        ({"train_dataset": []}, r"^train_dataset=: ajet.run has no such argument; did you mean 'tasks'"),
        ({"stepz": 3}, r"^stepz=: ajet.run has no such argument; did you mean 'steps'"),
        ({"tasks": RECORDS * 2}, r"^tasks=: duplicate task id 'a'"),
        ({"steps": -1}, r"^steps=: input should be greater"),
        ({"set": {"train.stepz": 1}}, r"^set= train.stepz: unknown key; did you mean 'steps'"),
        ({"resume": "gone"}, r"^resume= gone: no such folder"),
        ({"backbone": "locl"}, r"^backbone=: unknown backbone 'locl'; did you mean 'local'"),
    ],
)
def test_errors_are_the_command_lines_and_name_the_argument(
    debugging: Arguments, arguments: Arguments, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        ajet.run(**({"workflow": named, "judge": "exact"} | debugging | arguments))
    assert "\n" not in str(caught.value)


def test_a_table_of_tasks_is_refused_with_the_call_that_gives_its_rows(debugging: Arguments) -> None:
    table = pytest.importorskip("pandas").DataFrame(RECORDS)
    with pytest.raises(ConfigError, match=r'^tasks=: is a DataFrame. Give its rows: .*to_dict\("records"\)'):
        ajet.run(**{"workflow": named, "judge": "exact"} | debugging | {"tasks": table})


def test_a_run_that_fails_raises(debugging: Arguments) -> None:
    async def broken(task: Task) -> str:
        raise KeyError("lost")

    with pytest.raises(ajet.AjetError, match="all 2 episodes failed: 2 workflow:KeyError"):
        ajet.run(workflow=broken, judge="exact", **debugging)


def test_a_float_judge_says_nothing_of_accuracy_and_the_error_says_so(
    debugging: Arguments, agent: Agent
) -> None:
    run = ajet.run(workflow=agent, judge=lambda task, output: 0.25, **debugging)
    with pytest.raises(
        AttributeError, match=r"accuracy: the judge says nothing of success.*There are: .*reward"
    ):
        _ = run.after.accuracy


# ------------------------------------------------------------------ event loops


def test_it_works_while_an_event_loop_is_running_and_awaited(debugging: Arguments, agent: Agent) -> None:
    async def notebook() -> list[float]:
        run = ajet.run(workflow=agent, judge="exact", **debugging)
        one, two = await asyncio.gather(
            ajet.arun(workflow=agent, judge="exact", **debugging), asyncio.sleep(0.01, "the loop goes on")
        )
        assert two == "the loop goes on"
        return [run.after.reward, one.after.reward]

    assert asyncio.run(notebook()) == [0.5, 0.5]


def test_errors_of_a_call_beside_a_loop_are_raised_in_the_caller(debugging: Arguments) -> None:
    async def notebook() -> None:
        with pytest.raises(ConfigError, match=r"^workflow= nowhere:X"):
            ajet.run(workflow="nowhere:X", judge="exact", **debugging)
        with pytest.raises(ConfigError, match=r"^workflow= nowhere:X"):
            await ajet.arun(workflow="nowhere:X", judge="exact", **debugging)

    asyncio.run(notebook())


def test_cancelling_an_awaited_run_ends_it(debugging: Arguments) -> None:
    ended: list[bool] = []

    async def main() -> None:
        began = asyncio.Event()
        loop = asyncio.get_running_loop()

        async def endless(task: Task) -> str:
            loop.call_soon_threadsafe(began.set)
            try:
                await asyncio.sleep(600)
            finally:
                ended.append(True)
            return ""

        task = asyncio.create_task(_awaited(ajet.arun(workflow=endless, judge="exact", **debugging)))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), PATIENCE))
    assert ended


async def _awaited(something: Any) -> Any:
    return await something


SCRIPT_OF_A_NOTEBOOK = """
import asyncio, os, signal, sys, threading
import ajet

async def endless(task):
    print("began", flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(600)

def call():
    ajet.run(workflow=endless, tasks=[{"query": "q"}], judge="exact", backbone="debug",
             set={"backbone.debug.answers": {"type": "script", "path": "script.yaml"}}, progress=False)

async def cell():
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted", [t.name for t in threading.enumerate() if t.name != 'MainThread' and not t.daemon], flush=True)

if sys.argv[1] == "loop":
    loop = asyncio.new_event_loop()
    loop.run_until_complete(cell())
else:
    try:
        call()
    except KeyboardInterrupt:
        print("interrupted []", flush=True)
"""


@pytest.mark.whole
@pytest.mark.parametrize("where", fast({1}, ["loop", "script"]))
def test_ctrl_c_that_ends_a_script_is_told_in_one_line_with_the_run_folder(folder: Path, where: str) -> None:
    """No traceback, also where a loop runs; the exit code stays that of Ctrl-C."""
    script = textwrap.dedent(SCRIPT_OF_A_NOTEBOOK).replace(
        "except KeyboardInterrupt:", "except ZeroDivisionError:"
    )
    (folder / "cell.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "cell.py", where], capture_output=True, text=True, timeout=PATIENCE, cwd=folder
    )
    assert done.stderr.startswith(f"interrupted. Run folder: {folder / 'runs'}") and done.returncode in (
        -2,
        130,
    )
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.whole
@pytest.mark.parametrize("where", fast({0}, ["loop", "script"]))
def test_ctrl_c_ends_a_run_in_a_script_and_beside_a_loop(folder: Path, where: str) -> None:
    (folder / "cell.py").write_text(textwrap.dedent(SCRIPT_OF_A_NOTEBOOK))
    done = subprocess.run(
        [sys.executable, "cell.py", where], capture_output=True, text=True, timeout=PATIENCE, cwd=folder
    )
    assert done.stdout.splitlines() == ["began", "interrupted []"], done.stderr


def test_a_compiled_graph_is_a_workflow(debugging: Arguments) -> None:
    graphs = pytest.importorskip("langgraph.graph")
    messages = pytest.importorskip("langchain_core.messages")

    async def node(state: Any) -> Any:
        return {"messages": [messages.AIMessage(await ask(Task("", state["messages"][-1].content)))]}

    graph = graphs.StateGraph(graphs.MessagesState)
    graph.add_node("node", node)
    graph.add_edge(graphs.START, "node")
    run = ajet.run(workflow=graph.compile(), judge="exact", **debugging)
    assert run.after.accuracy == 0.5
    assert job_of(run)["workflow"].startswith("object:an instance of CompiledStateGraph")
