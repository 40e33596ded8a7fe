"""The services of docs/environments.md, run as they stand there."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet.interfaces.service import Command, Service
from ajet.job.config import Layers
from ajet.job.parts import build_service
from ajet.plugins import Plugins, load_plugins
from ajet.services.supervisor import with_services
from tests.pages import files, page
from tests.ports import free_port
from tests.program import Program

PAGE = page("docs/environments.md").partition("\n## Services\n")[2]
pytest.importorskip("openai")


class Here:
    """The page's folder, on a port that is free."""

    def __init__(self, path: Path, program: Program) -> None:
        self.path, self.port, self._program = path, free_port(), program
        readers = files(page("docs/readers.md"))
        both = {name: readers[name] for name in ("lake.py", "guess_agent.py")} | files(PAGE)
        for name, text in both.items():
            (path / name).write_text(text.replace("8080", str(self.port)), encoding="utf-8")

    def ajet(self, *words: str) -> tuple[int, str]:
        done = self._program(*words)
        return done.code, (done.out + done.err).replace(str(self.port), "8080")

    def change(self, **fields: Any) -> None:
        job = yaml.safe_load((self.path / "job.yaml").read_text())
        job["services"]["guess"] |= fields
        (self.path / "job.yaml").write_text(yaml.safe_dump(job))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ajet: Program) -> Iterator[Here]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield Here(tmp_path, ajet)
    sys.modules.pop("guess_agent", None)


@pytest.mark.whole
def test_the_command_does_what_the_page_shows(here: Here) -> None:
    [(command, shown)] = re.findall(r"^\$ ajet (.*)\n((?:(?!```).*\n)*)", PAGE, re.MULTILINE)
    code, printed = here.ajet(*shlex.split(command))
    assert code == 0, printed
    assert shown.splitlines() and all(line in printed for line in shown.splitlines()), printed
    assert re.search(r"0 failed", printed)


@pytest.mark.whole
def test_run_services_says_the_same(here: Here) -> None:
    [key] = re.findall(r"`(run: \{services: .*?\})`", PAGE)
    with (here.path / "job.yaml").open("a") as job:
        job.write(f"{key}\n")
    code, printed = here.ajet("check", "job.yaml", "--answers", "answers.yaml", "--group-size", "1")
    assert code == 0 and "service guess: healthy after" in printed


def test_every_field_is_told() -> None:
    assert all(f"`{name}`" in PAGE for name in Command.model_fields)


WRONG: dict[str, Any] = {
    "it is not declared": {},
    "it ends at once": {"command": ["python", "nothing.py"]},
    "it does not become healthy": {"command": ["sleep", "60"], "start_timeout": "500ms"},
    "a secret is not set": {"secrets": ["LAKE_TOKEN"]},
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_as_the_page_says(here: Here, what: str) -> None:
    said = dict(re.findall(r"^\| ([\w ]+) \| `(.*?)`(?: and .*)? \|$", PAGE, re.MULTILINE))
    assert set(said) >= set(WRONG)
    here.change(**WRONG[what])
    name = "gues" if what == "it is not declared" else "guess"
    code, printed = here.ajet("check", "job.yaml", "--with", name, "--answers", "answers.yaml")
    assert code in (1, 2) and f"error: {said[what]}" in printed, printed


def test_a_plugins_service_need_not_be_declared(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("counter_plugin", here.path / "counter_plugin.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plugins = Plugins()
    plugins.register(module, "counter", "1")
    installed = plugins.classes["service", "counter"]
    monkeypatch.setitem(load_plugins().classes, ("service", "counter"), installed)
    assert issubclass(installed.cls, Service)

    said: list[str] = []
    layers = Layers()
    layers.add({"services": {"counter": {"port": free_port()}}}, "job.yaml", here.path)
    with with_services(layers, ["counter"], said.append):
        assert build_service(layers, "counter").healthy()
    assert "stopped" in said[-1]
    assert build_service(Layers(), "counter").address == "127.0.0.1:8081"
