"""examples/quickstart.ipynb, executed cell by cell in a kernel of its own."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.patience import PATIENCE

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "quickstart.ipynb"
STEPS = 20
"""Of its training."""


def read() -> nbformat.NotebookNode:
    return nbformat.read(NOTEBOOK, as_version=4)


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell printed and returned, as text and HTML."""
    parts = []
    for output in cell.outputs:
        assert output.output_type != "error", output
        parts += [output.text] if "text" in output else list(output.data.values())
    return "\n".join(parts)


def test_it_has_ten_cells_and_is_kept_without_outputs() -> None:
    notebook = read()
    nbformat.validate(notebook)
    assert len(notebook.cells) == 10
    for cell in notebook.cells[1:]:
        assert cell.cell_type == "code" and cell.outputs == [] and cell.execution_count is None


def executed(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What each cell shows, of the notebook with so many steps."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    (tmp_path / "here").mkdir()
    notebook = read()
    for cell in notebook.cells:
        cell.source = re.sub(r"\b(steps?)=20\b", rf"\1={steps}", cell.source)
        if steps < STEPS:
            cell.source = cell.source.replace("3e-5}", '3e-5, "rollout.group_size": 2}')
    resources = {"metadata": {"path": str(tmp_path / "here")}}
    NotebookClient(notebook, timeout=4 * PATIENCE, resources=resources).execute()
    return [shown_or_text(cell) for cell in notebook.cells]


@pytest.mark.e2e
@pytest.mark.whole
@pytest.mark.models("smollm2")
def test_each_cell_shows_what_it_announces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, _, given, checked, trained, curve, scores, evaluated, served = executed(2, tmp_path, monkeypatch)
    assert "What is 3 + 4?" in given
    assert "ajet check · agent" in checked
    assert "step 2/2" in trained
    assert "&lt;svg" in curve
    assert scores.count("%") == 2
    assert scores.count("What is") == 6  # three times the question that is shown and the task's
    assert "accuracy" in evaluated
    assert served.startswith("step_000002 answers: ")


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.models("smollm2")
def test_it_trains_a_checkpoint_that_is_better(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    *_, scores, _, served = executed(STEPS, tmp_path, monkeypatch)
    before, after = (int(n) / 100 for n in re.findall(r"(\d+)%", scores))
    assert after >= before + 0.3
    assert served.startswith("step_000020 answers: ") and re.search(r"\d", served.partition("answers:")[2])


def shown_or_text(cell: nbformat.NotebookNode) -> str:
    return shown(cell) if cell.cell_type == "code" else cell.source
