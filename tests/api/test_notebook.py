"""The Python API in a real Jupyter kernel: calls beside its running loop, `await`, what cells show, an interrupted cell."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nbformat
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
SYNCHRONOUS = "ajet.run(workflow=agent, **job)"
AWAITED = "awaited = await ajet.arun(workflow=agent, **job)\nawaited.after"
EVALUATED = """
del job["backbone"], job["set"]
scores = await ajet.aevaluate(workflow=agent, model=MODEL, **job)
scores
"""
CHECKED = "ajet.check(workflow=agent, model=MODEL, answers='script.yaml', first=1, group_size=1, **job)"
INTERRUPTED = "ajet.run(workflow=endless, **job)"
AFTERWARDS = "print(ajet.run(workflow=agent, **job).after.reward, Path('ended').exists())"


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NotebookClient:
    """A client of a notebook in a folder of its own."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    (tmp_path / "here").mkdir()
    return NotebookClient(
        new_notebook(), timeout=PATIENCE, resources={"metadata": {"path": str(tmp_path / "here")}}
    )


def outputs(client: NotebookClient, *sources: str) -> list[Any]:
    """Execute cells in one kernel; the last output of each."""
    client.nb.cells = [new_code_cell(source) for source in sources]
    client.execute()
    return [cell.outputs[-1] if cell.outputs else None for cell in client.nb.cells]


def test_cells_call_and_await_runs_and_show_their_results_as_html(client: NotebookClient) -> None:
    _, run, scores = outputs(client, SETUP, SYNCHRONOUS, AWAITED)
    assert run.data["text/html"].startswith("<iframe") and run.data["text/plain"].startswith("<Run ")
    assert "<td>accuracy</td><td>1</td>" in scores.data["text/html"]


def test_the_progress_of_a_cell_is_one_output_that_is_replaced(client: NotebookClient) -> None:
    outputs(client, SETUP, "ajet.run(workflow=agent, **{**job, 'progress': True}).after.reward")
    progress, reward = client.nb.cells[-1].outputs
    assert progress.data["text/plain"].startswith("run folder: ")
    assert "\nbatch: " in progress.data["text/plain"] or "\nno batch: " in progress.data["text/plain"]
    assert reward.data["text/plain"] == "1.0"


@pytest.mark.slow
def test_cells_evaluate_and_check_a_model(client: NotebookClient, model: Path) -> None:
    named = f"MODEL = {str(model)!r}"
    *_, evaluated, checked = outputs(client, SETUP, named, EVALUATED, CHECKED)
    assert "<td>episodes</td><td>1</td>" in evaluated.data["text/html"]
    assert checked.data["text/html"].startswith("<pre>ajet check · agent")


def test_interrupting_a_cell_ends_its_run_and_the_next_one_works(client: NotebookClient) -> None:
    here = Path(client.resources["metadata"]["path"])

    async def session() -> list[nbformat.NotebookNode]:
        async with client.async_setup_kernel():
            return [
                await cell(0, SETUP),
                (await asyncio.gather(cell(1, INTERRUPTED), interrupt()))[0],
                await cell(2, AFTERWARDS),
            ]

    async def cell(index: int, source: str) -> nbformat.NotebookNode:
        made = new_code_cell(source)
        client.nb.cells.append(made)
        return await client.async_execute_cell(made, index)

    async def interrupt() -> None:
        while not (here / "began").exists():
            await asyncio.sleep(0.05)
        assert client.km is not None
        await client.km.interrupt_kernel()

    client.allow_errors = True
    _, interrupted, afterwards = asyncio.run(session())
    assert [output.ename for output in interrupted.outputs] == ["KeyboardInterrupt"]
    assert [output.text for output in afterwards.outputs] == ["1.0 True\n"]
