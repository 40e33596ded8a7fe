"""The Python API as its users first see it: two pieces of code, run as they stand here, as cells of a notebook."""

from __future__ import annotations

import ast
import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest
import yaml

import ajet
from ajet import Task
from ajet.job.models import find_recipe
from tests.api.asking import ask

CALLS = """
import ajet

run = ajet.run(workflow=agent, tasks=[{"query": "...", "answer": "7"}], judge=judge, model="starter", steps=40)
run.after.accuracy, run.checkpoint, run.metrics          # list of dicts, one a step
for episode in run.episodes(step=40): print(episode.reward, episode.timelines[0].text)
run                                                      # in a notebook: curve, table, links

ajet.evaluate(workflow=agent, tasks=held_out, judge=judge, model=run.checkpoint).accuracy
ajet.check(workflow=agent, tasks=tasks, judge=judge)     # the report of `ajet check`, as an object
with ajet.serve(run.checkpoint) as server: server.base_url, server.api_key
ajet.run("job.yaml", steps=5, set={"train.learning_rate": 1e-4}); ajet.run(resume=run.dir); ajet.load_run("runs/...")
"""
OWN_LOOP = """
async with ajet.open(model="starter") as learner:
    for batch in batches(tasks, 16):
        groups = await learner.rollout(agent, batch, group_size=8, judge=judge)   # filter or re-score them
        metrics = await learner.train(groups, learning_rate=8e-5)
    async with learner.episode(task) as episode:                                  # any code is captured
        episode.reward = score(await anything(task))
    learner.save("my-model")
"""
STEPS = 6
"""In place of the 40, which take longer."""
AGENT = """
import httpx2

client = httpx2.AsyncClient()

async def agent(task):
    body = {"model": "m", "messages": [{"role": "user", "content": task.query}], "max_tokens": 1}
    answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"] or ""

def judge(task, output):
    return task.metadata["answer"] in output.response
"""
JOB = {
    "workflow": "my_agent.py:agent",
    "judge": "my_agent.py:judge",
    "task": {"reader": "tasks.jsonl"},
    "backbone": {"local": {"threads": 1}},
}
TASKS = [{"query": f"{a}+{b}?", "answer": str(a + b)} for a in range(4) for b in range(4)]
TASKS.append({"query": "3+3?", "id": "last", "answer": "6"})


@pytest.fixture
def names(folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the code finds defined: an agent and a judge of a module of the user's, tasks, a small `starter`."""
    starter = find_recipe("starter")
    assert starter is not None
    cache = folder / "cache"
    cache.mkdir()
    (cache / f"starter-{starter.key(0)}").symlink_to(model)
    monkeypatch.setenv("AJET_CACHE", str(cache))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (folder / "my_agent.py").write_text(AGENT)
    (folder / "tasks.jsonl").write_text('{"query": "3+4?", "answer": "7"}\n')
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    sys.path.insert(0, str(folder))
    notebook = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    exec("import ajet\nfrom my_agent import agent, judge", vars(notebook))
    vars(notebook).update(tasks=TASKS, held_out=TASKS[:2])
    yield vars(notebook)
    del sys.modules["my_agent"]


def shown(code: str, names: dict[str, Any]) -> list[Any]:
    """Run code as a notebook does, with `await` at the top level; the values of its expressions there."""
    values: list[Any] = []
    names["__shown__"] = values.append
    tree = ast.parse(code)
    for i, statement in enumerate(tree.body):
        if isinstance(statement, ast.Expr):
            call = ast.parse("__shown__(0)").body[0]
            assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
            call.value.args = [statement.value]
            tree.body[i] = ast.fix_missing_locations(ast.copy_location(call, statement))
    cell: CodeType = compile(tree, "a cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def in_a_loop() -> None:
        found = eval(cell, names)
        if inspect.iscoroutine(found):
            await found

    asyncio.run(in_a_loop())
    return values


@pytest.mark.whole
def test_calls_from_training_to_serving_run_as_they_are_written(
    names: dict[str, Any], debugging: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ajet.run(workflow=ask, judge="exact", run_dir="runs/...", **debugging)
    figures, run, accuracy, check, short, resumed, loaded = shown(CALLS.replace("40", str(STEPS)), names)
    reached, checkpoint, metrics = figures
    assert 0 <= reached <= 1 and 0 <= accuracy <= 1
    assert run.checkpoint == checkpoint and checkpoint.name == f"step_{STEPS:06}"
    assert [m["step"] for m in metrics] == list(range(1, STEPS + 1)) and "<iframe" in run._repr_html_()
    assert len(run.episodes(step=STEPS)) == capsys.readouterr().out.count("<|im_start|>assistant")
    assert check.ok and len(check.report.episodes) == 16
    assert names["server"].base_url.startswith("http://127.0.0.1:") and names["server"].api_key
    assert [m["learning_rate"] for m in short.metrics] == [1e-4] * 5
    assert resumed.dir == run.dir and [m["step"] for m in resumed.metrics] == list(range(1, STEPS + 1))
    assert loaded.dir.parent.name == "..." and len(loaded.episodes()) == 2


@pytest.mark.whole
def test_a_training_loop_of_ones_own_runs_as_it_is_written(names: dict[str, Any], folder: Path) -> None:
    names |= {"batches": batches, "task": Task("t", "1+1?"), "anything": ask, "score": len}
    shown(OWN_LOOP, names)
    learner, episode = names["learner"], names["episode"]
    assert (learner.step, learner.saved) == (2, folder / "my-model") and names["metrics"][
        "learning_rate"
    ] == 8e-5
    assert [(g.task.query, len(g.episodes)) for g in names["groups"]] == [("3+3?", 8)]
    assert episode.reward == len(episode.messages[0][-1]["content"]) and episode.failure is None
    assert (folder / "my-model" / "model.safetensors").is_file()


def batches(tasks: list[Any], size: int) -> Iterator[list[Any]]:
    """Lists of up to so many tasks."""
    for first in range(0, len(tasks), size):
        yield tasks[first : first + size]
