"""docs/plugins.md, run as it stands there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import ajet
from ajet import hookspecs
from ajet.cli.plugins import describe_hooks
from ajet.plugins import Plugins, load_plugins, validated
from ajet.testing import backbones, judges, workflows
from ajet_projects.skeletons import KINDS as BEGUN
from tests.pages import blocks, files, page
from tests.patience import PATIENCE
from tests.tiers import fast

PAGE = page("docs/plugins.md")
FILES = files(PAGE)
TESTS = [name for name in FILES if name.startswith("test_")]
MODULES = [name.removesuffix(".py") for name in FILES if name.endswith(".py") and name not in TESTS]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_every_kind_is_in_the_table_with_its_base_class_and_how_to_begin() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \|(.*)\|$", PAGE, re.MULTILINE))
    kinds = {kind for kind, _ in load_plugins().classes}
    assert rows.keys() >= kinds
    for kind in kinds:
        bases = re.findall(r"`ajet\.([A-Z]\w+)`", rows[kind])
        assert bases and all(getattr(ajet, base).kind == kind for base in bases)
        assert (f"`ajet plugin new {kind} my_{kind}`" in rows[kind]) == (kind in BEGUN)


def test_every_hook_is_printed_with_its_signature() -> None:
    listed = describe_hooks()
    names = [name for name in vars(hookspecs) if name.startswith("ajet_")]
    assert re.findall(r"^(ajet_\w+)\(", listed, re.MULTILINE) == names
    assert "\najet_step_end(event: StepEnd) -> None\n" in listed


@pytest.mark.parametrize("name", MODULES)
def test_each_plugin_registers(here: Path, name: str) -> None:
    plugins = Plugins()
    plugins.register(importlib.import_module(name), name, "0.1")
    for installed in plugins.classes.values():
        assert installed.cls.__doc__


@pytest.mark.whole
@pytest.mark.parametrize("name", fast({0}, TESTS))
def test_each_test_passes(here: Path, name: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    done = subprocess.run([*command, name], cwd=here, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= (len(judges.JUDGE_CHECKS) if "check_judge" in FILES[name] else 1)


def test_the_job_uses_the_judge(here: Path) -> None:
    plugins = Plugins()
    plugins.register(importlib.import_module("my_judges"), "my-judges", "0.1")
    [job] = blocks(PAGE, "yaml")
    fields = yaml.safe_load(job)["judge"]
    cls: Any = plugins.get(ajet.Judge, fields.pop("type"), "judge")
    assert validated(cls, fields, "judge").most == 40


@pytest.mark.slow
def test_the_package_installs_and_the_commands_know_it(here: Path, tmp_path_factory: Any) -> None:
    installed = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    pip += ["--target", str(installed), "."]
    subprocess.run(pip, cwd=here, check=True, capture_output=True)
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])

    def ajet(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "ajet", *words],
            cwd=installed,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert re.search(r"length +my-judges +0\.1", ajet("plugins"))
    assert "most" in ajet("plugins", "show", "length")


def test_what_backbones_and_judges_promise_is_told() -> None:
    for check in (*judges.JUDGE_CHECKS, *backbones.BACKBONE_CHECKS, *workflows.WORKFLOW_CHECKS):
        assert check.__doc__
    row = next(line for line in PAGE.splitlines() if line.startswith("| `check_backbone` | a name"))
    told = [words.strip(" |") for words in row.split("|")[3].split(", ")]
    assert len(told) == len(backbones.BACKBONE_CHECKS)
    row = next(line for line in PAGE.splitlines() if line.startswith("| `check_judge` | a judge"))
    assert len(row.split("|")[3].split(", ")) == len(judges.JUDGE_CHECKS)
