"""`ajet.backbones`: the one place from which plugins with a loop of their own take the core's names."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from ajet import backbones

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"


def imported():
    """The names that plugins import from the facade."""
    for file in PLUGINS.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "ajet.backbones" in text else ():
            if isinstance(node, ast.ImportFrom) and node.module == "ajet.backbones":
                yield from (alias.name for alias in node.names)


@pytest.mark.whole
def test_every_name_is_found_and_some_plugin_needs_it():
    assert set(imported()) == set(dir(backbones))
    assert all(getattr(backbones, name) is not None for name in dir(backbones))


@pytest.mark.whole
def test_a_name_may_be_a_module_that_nothing_else_has_imported():
    code = "from ajet.backbones import asyncrun, httpx; print(asyncrun.__name__, httpx.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ajet.utils.asyncrun ajet.capture.clients.httpx\n"


def test_an_unknown_name_is_an_error_of_the_module():
    with pytest.raises(AttributeError, match=r"module 'ajet\.backbones' has no attribute 'nothing'"):
        _ = backbones.nothing
