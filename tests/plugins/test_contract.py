"""What every plugin of ours keeps to."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from ajet import Judge, Reader
from ajet.plugins import Plugins

ROOT = Path(__file__).parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
HEAVY = ("numpy", "torch", "transformers", "vllm", "openai", "httpx", "httpx2")
HEAVY += ("ray", "tinker", "verl", "gepa", "hydra", "omegaconf", "transfer_queue")
HEAVY += ("agents", "agentscope", "autogen_core", "langchain_core", "langgraph")
HEAVY += ("bs4", "datasets", "datasketch", "docx", "gymnasium", "pyarrow", "pypdf", "reasoning_gym")
folders = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


def plugin(name: str) -> ModuleType:
    """The module that a distribution's entry point names."""
    project = tomllib.loads((ROOT / "plugins" / name / "pyproject.toml").read_text())["project"]
    return import_module(project["entry-points"]["ajet"][name])


@pytest.mark.whole
def test_top_modules_import_nothing_heavy() -> None:
    # types.py of the core needs numpy, so what counts is what the plugins add to it.
    code = (
        "import sys; from ajet import Backbone, EnginePlugin, Judge, Logger, Reader, Task; "
        f"before = set(sys.modules); import {', '.join(f'ajet_{folder.name}' for folder in FOLDERS)}; "
        f"print(*(set(sys.modules) - before) & set({HEAVY}))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == ""


@folders
def test_names_and_versions_follow_the_folder_and_the_core(folder: Path) -> None:
    core = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"ajet-plugin-{folder.name.replace('_', '-')}"
    assert project["version"] == core["version"]
    assert project["entry-points"]["ajet"].keys() == {folder.name}
    assert set(project["entry-points"]) <= {
        "ajet",
        "ajet.commands",
        "ajet.modules",
        "ajet.names",
        "ajet.options",
    }
    required = [line for line in project["dependencies"] if line.startswith("ajet")]
    assert {line.partition("==")[2] for line in required} == {core["version"]}
    assert (folder / f"ajet_{folder.name}" / "py.typed").exists()


def test_all_of_them_register_side_by_side() -> None:
    plugins = Plugins()
    for folder in FOLDERS:
        plugins.register(plugin(folder.name), folder.name, "0")
    for kind, name in [("reader", "jsonl"), ("reader", "random"), ("judge", "exact"), ("judge", "math")]:
        assert (kind, name) in plugins.classes
    assert {"as_openai_client", "as_langchain_model", "as_agentscope_model"} <= set(plugins.handles)


def test_a_reader_and_a_judge_are_built_from_a_job() -> None:
    plugins = Plugins()
    for name in ("readers", "judges"):
        plugins.register(plugin(name), name, "0")
    reader = plugins.build(Reader, {"type": "random", "count": 3}, "task.reader")
    judge = plugins.build(Judge, {"type": "math", "tolerance": 0.5}, "judge")
    assert reader.model_dump() == {"count": 3, "seed": 0}
    assert judge.model_dump() == {"answer": "answer", "tolerance": 0.5, "seconds": 5.0}
