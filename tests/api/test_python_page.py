"""docs/python.md, run as it stands there, with fewer steps and a smaller model."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ajet
from ajet import environments, plugin_names
from tests.pages import blocks, files, page

PAGE = page("docs/python.md")
SMALL = "set={'train.batch_size': 2, 'rollout.group_size': 2}"
FEWER = {
    '"starter"': None,
    "steps=40": f"steps=2, {SMALL}",
    "step=40": "step=2",
    "steps=41": "steps=3",
    "steps=1,": f"steps=1, model=run.checkpoint, {SMALL},",
}


def is_run(block: str) -> bool:
    """Whether a block is neither left alone nor a file, which the build runs."""
    told = PAGE[: PAGE.index(block)].splitlines()[-2].startswith("<!-- not run")
    return not told and block not in files(PAGE).values()


@pytest.mark.slow
def test_every_block_of_the_page_runs(
    folder: Path, model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    (folder / "page.py").write_text("")
    script = ModuleType("__main__")  # its functions are those of a script
    monkeypatch.setitem(sys.modules, "__main__", script)
    shown = [block for block in blocks(PAGE, "python") if is_run(block)]
    assert len(shown) == 7
    for block in shown:
        lines = "\n" * PAGE.count("\n", 0, PAGE.index(block))  # so that a traceback names the page's line
        for words, fewer in FEWER.items():
            block = block.replace(words, fewer or repr(str(model)))
        exec(compile(lines + block, "docs/python.md", "exec"), vars(script))
    printed = capsys.readouterr().out
    run: Any = vars(script)["run"]
    assert [m["step"] for m in ajet.load_run(run.dir).metrics] == [1, 2, 3]
    assert "judge=: unknown judge 'exct'; did you mean 'exact'. Installed: " in printed
    assert "ajet check · agent" in printed and "http://127.0.0.1:" in printed


def test_the_page_names_every_function_of_the_api() -> None:
    functions = [
        name for name in dir(ajet) if getattr(ajet, name).__module__.startswith(("ajet.api.", "ajet_"))
    ]
    functions = [name for name in functions if name.islower()]
    assert len(functions) == 22
    assert [name for name in functions if f"ajet.{name}" not in PAGE] == []


def test_the_module_shows_its_public_names_only() -> None:
    assert {"run", "evaluate", "Judge", "Run"} <= set(ajet.__all__)
    assert set(dir(ajet)) - set(ajet.__all__) == {
        "Bisected",
        "Forecast",
        "Rejudged",
        "Selection",
        "TunedPrompts",
        "abisect",
        "aforecast",
        "arejudge",
        "aselect_model",
        "atune_prompt",
        "bisect",
        "forecast",
        "rejudge",
        "select_model",
        "tune_prompt",
    }
    for name in dir(ajet):
        assert getattr(ajet, name).__doc__, name


def test_a_name_whose_plugin_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints())
    for names in (vars(ajet), vars(plugin_names)):
        for name in ("environments", "forecast"):
            if name in names and names[name] is not environments:
                monkeypatch.delitem(names, name)
    with pytest.raises(
        ajet.ConfigError, match=r"^ajet\.forecast is not installed\. .* pip install 'ajet\[advice\]'\.$"
    ):
        _ = ajet.forecast
    with pytest.raises(
        ajet.ConfigError,
        match=r"^ajet\.environments is not installed\. .* pip install 'ajet\[environments\]'\.$",
    ):
        _ = environments.serve
    assert not hasattr(ajet, "foretell")
