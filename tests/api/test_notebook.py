"""The Python API in a real Jupyter kernel: calls beside its running loop, `await`, what cells show, an interrupted cell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tests.patience import PATIENCE

SETUP = """
import asyncio, httpx2
from pathlib import Path
import ajet

Path("script.yaml").write_text("- {say: '4'}")

async def agent(task):
    async with httpx2.AsyncClient() as client:
        body = {"model": "m", "messages": [{"role": "user", "content": task.query}]}
        answer = await client.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return answer.json()["choices"][0]["message"]["content"]

async def endless(task):
    Path("began").touch()
    try:
        await asyncio.sleep(600)
    finally:
        Path("ended").touch()

answers = {"type": "script", "path": "script.yaml"}
job = dict(tasks=[{"id": "a", "query": "2+2?", "answer": "4"}], judge="exact", backbone="debug", progress=False,
           set={"backbone.debug.answers": answers, "backbone.debug.group_size": 1})
"""
EVALUATED = """
del job["backbone"], job["set"]
scores = await ajet.aevaluate(workflow=agent, model=MODEL, **job)
scores
"""
CHECKED = "ajet.check(workflow=agent, model=MODEL, answers='script.yaml', first=1, group_size=1, **job)"


CELLS = {
    "setup": SETUP,
    "synchronous": "ajet.run(workflow=agent, **job)",
    "awaited": "awaited = await ajet.arun(workflow=agent, **job)\nawaited.after",
    "progress": "ajet.run(workflow=agent, **{**job, 'progress': True}).after.reward",
    "interrupted": "ajet.run(workflow=endless, **job)",
    "afterwards": "print(ajet.run(workflow=agent, **job).after.reward, Path('ended').exists())",
}
"""Executed one after the other in one kernel, whose start takes longer than they do."""


def client_of(folder: Path, patch: pytest.MonkeyPatch) -> NotebookClient:
    """A client of a notebook in a folder of its own."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        patch.setenv(name, str(folder / "jupyter"))
    (folder / "here").mkdir()
    return NotebookClient(
        new_notebook(), timeout=PATIENCE, resources={"metadata": {"path": str(folder / "here")}}
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each cell shows."""
    folder = tmp_path_factory.mktemp("notebook")
    shown: dict[str, list[Any]] = {}

    async def session(client: NotebookClient) -> None:
        async with client.async_setup_kernel():
            for index, (name, source) in enumerate(CELLS.items()):
                cell = new_code_cell(source)
                client.nb.cells.append(cell)
                executed = client.async_execute_cell(cell, index)
                if name == "interrupted":
                    await asyncio.gather(executed, interrupt(client))
                else:
                    await executed
                shown[name] = cell.outputs

    async def interrupt(client: NotebookClient) -> None:
        while not (folder / "here" / "began").exists():
            await asyncio.sleep(0.05)
        assert client.km is not None
        await client.km.interrupt_kernel()

    with pytest.MonkeyPatch.context() as patch:
        client = client_of(folder, patch)
        client.allow_errors = True
        asyncio.run(session(client))
    return shown


@pytest.mark.whole
def test_cells_call_and_await_runs_and_show_their_results_as_html(outputs: dict[str, list[Any]]) -> None:
    run, scores = outputs["synchronous"][-1], outputs["awaited"][-1]
    assert run.data["text/html"].startswith("<iframe") and run.data["text/plain"].startswith("<Run ")
    assert "<td>accuracy</td><td>1</td>" in scores.data["text/html"]


@pytest.mark.whole
def test_the_progress_of_a_cell_is_one_output_that_is_replaced(outputs: dict[str, list[Any]]) -> None:
    progress, reward = outputs["progress"]
    assert progress.data["text/plain"].startswith("run folder: ")
    assert "\nbatch: " in progress.data["text/plain"] or "\nno batch: " in progress.data["text/plain"]
    assert reward.data["text/plain"] == "1.0"


def test_interrupting_a_cell_ends_its_run_and_the_next_one_works(outputs: dict[str, list[Any]]) -> None:
    assert [output.ename for output in outputs["interrupted"]] == ["KeyboardInterrupt"]
    assert [output.text for output in outputs["afterwards"]] == ["1.0 True\n"]


@pytest.mark.slow
def test_cells_evaluate_and_check_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path
) -> None:
    client = client_of(tmp_path, monkeypatch)
    client.nb.cells = [new_code_cell(s) for s in (SETUP, f"MODEL = {str(model)!r}", EVALUATED, CHECKED)]
    client.execute()
    evaluated, checked = (cell.outputs[-1] for cell in client.nb.cells[2:])
    assert "<td>episodes</td><td>1</td>" in evaluated.data["text/html"]
    assert checked.data["text/html"].startswith("<pre>ajet check · agent")
