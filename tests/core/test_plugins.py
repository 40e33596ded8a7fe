"""The plugin manager: clashes, broken plugins, errors that name what is installed."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import model_validator

from ajet import (
    Algorithm,
    EpisodeView,
    Judge,
    JudgeOutput,
    Logger,
    Plugin,
    Reader,
    Task,
    WorkflowOutput,
    hookimpl,
)
from ajet.job.config import Layers
from ajet.job.parts import build_service
from ajet.own_plugins import EXTRAS
from ajet.plugins import Plugins, entry_points, load_plugins, validated
from ajet.runs.runtime import own_engine
from ajet.types import ConfigError
from tests.patience import PATIENCE


def judge_class(label: str) -> type[Judge]:
    class Some(Judge):
        """A judge."""

        name = label
        strictness: int = 1

        async def judge(self, task: Task, output: WorkflowOutput, episode: EpisodeView) -> JudgeOutput:
            return JudgeOutput(reward=1.0)

    return Some


def plugin(ajet_plugins: Callable[[], Any], module: str = "module") -> Any:
    return SimpleNamespace(__name__=module, ajet_plugins=hookimpl(ajet_plugins))


def test_two_plugins_of_one_kind_and_name_are_an_error_that_names_both_distributions() -> None:
    plugins = Plugins()
    plugins.register(plugin(lambda: [judge_class("same")], "one"), "ajet-one", "1.0")
    with pytest.raises(ConfigError, match=r"judge 'same': one of ajet-one 1.0, one of ajet-two 2.0"):
        plugins.register(plugin(lambda: [judge_class("same")], "two"), "ajet-two", "2.0")


@pytest.mark.parametrize(
    ("name", "needs"), [("wandb", "ajet-plugin-loggers[wandb]"), ("tensorboard", "ajet[loggers]")]
)
def test_a_missing_logger_is_said_with_all_that_it_needs(name: str, needs: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"It comes with pip install '{needs}'.")):
        Plugins().get(Logger, name, "run.loggers.0")


def test_what_concerns_all_fields_is_said_without_a_value() -> None:
    class Pair(Plugin):
        @model_validator(mode="after")
        def _refuse(self) -> Any:
            raise ValueError("Nothing is installed")

    with pytest.raises(ConfigError, match=r"^run.loggers.0: nothing is installed\.$"):
        validated(Pair, {}, "run.loggers.0")


def test_two_plugins_with_one_handle_are_an_error() -> None:
    def brings_handle(module: str) -> Any:
        return SimpleNamespace(__name__=module, ajet_handles=hookimpl(lambda: {"as_x": lambda tuner: None}))

    plugins = Plugins()
    plugins.register(brings_handle("one"), "ajet-one", "1.0")
    with pytest.raises(ConfigError, match=r"tuner\.as_x, one of them ajet-two 2\.0"):
        plugins.register(brings_handle("two"), "ajet-two", "2.0")


def test_an_unknown_name_lists_what_is_installed_and_the_nearest() -> None:
    plugins = Plugins()
    plugins.register(plugin(lambda: [judge_class("exact"), judge_class("math")]), "d", "1")
    with pytest.raises(
        ConfigError, match=r"judge.type: unknown judge 'maht'; did you mean 'math'. Installed: exact, math\."
    ):
        plugins.get(Judge, "maht", "judge.type")


def test_an_unknown_name_that_a_plugin_of_ours_has_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"Installed: none\. It comes with pip install 'ajet\[readers\]'\."):
        Plugins().get(Reader, "jsonl", "task.reader.type")


def test_the_table_of_our_plugins_is_what_they_bring() -> None:
    extras = {f"ajet-plugin-{extra}": extra for extra in EXTRAS}
    told = {
        (kind, name): extra
        for extra, kinds in EXTRAS.items()
        for kind, names in kinds.items()
        if kind not in ("module", "option", "section")
        for name in names.split()
    }
    classes = load_plugins().classes.values()
    found = {(each.kind, each.name): each.distribution for each in classes if each.distribution != "ajet"}
    for kind in ("command", "name"):
        for entry in importlib.metadata.entry_points(group=f"ajet.{kind}s"):
            assert entry.dist
            found[kind, entry.name] = entry.dist.name
    assert told == {named: extras[distribution] for named, distribution in found.items()}


def test_a_misspelt_field_is_an_error_with_the_nearest() -> None:
    plugins = Plugins()
    plugins.register(plugin(lambda: [judge_class("math")]), "d", "1")
    with pytest.raises(ConfigError, match=r"judge.strictnes: unknown key; did you mean 'strictness'"):
        plugins.build(Judge, {"type": "math", "strictnes": 2}, "judge")
    with pytest.raises(ConfigError, match="judge: needs `type`"):
        plugins.build(Judge, {"strictness": 2}, "judge")


def raises() -> Any:
    raise ImportError("no module named heavy")


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (raises, "ImportError: no module named heavy"),
        (lambda: [int], "is not a subclass of ajet.Plugin"),
        (
            lambda: [type("Kindless", (Plugin,), {"name": "k"})],
            "Kindless is of no kind; derive it from ajet.Judge or",
        ),
        (lambda: [type("Nameless", (Judge,), {})], "has no `name: ClassVar[str]`"),
    ],
)
def test_a_plugin_that_does_not_load_or_breaks_the_contract_is_kept_with_its_error(
    monkeypatch: pytest.MonkeyPatch, hook: Callable[[], Any], said: str
) -> None:
    bad = SimpleNamespace(
        name="bad", value="bad", dist=SimpleNamespace(name="ajet-bad", version="1"), load=lambda: plugin(hook)
    )
    core = [entry for entry, distribution, _ in entry_points() if distribution == "ajet"]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [bad, *core])
    plugins = load_plugins.__wrapped__()
    (broken,) = plugins.broken
    assert broken.distribution == "ajet-bad" and said in broken.error
    with pytest.raises(ConfigError, match="ajet-bad did not load"):
        plugins.get(Judge, "bad", "judge")
    assert plugins.get(Algorithm, "grpo", "train.algorithm")


def test_metadata_of_another_version_is_an_error_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [])
    with pytest.raises(ConfigError, match=r"does not name its own plugins.*pip install -e \."):
        load_plugins.__wrapped__()


def test_a_hook_that_is_not_marked_is_an_error() -> None:
    unmarked = SimpleNamespace(__name__="module", ajet_plugins=lambda: [judge_class("some")])
    with pytest.raises(
        TypeError, match=r"ajet_plugins: is not marked as a hook; decorate it with @ajet\.hookimpl"
    ):
        Plugins().register(unmarked, "d", "1")


def test_one_hook_brings_classes_of_several_kinds() -> None:
    class Some(Reader):
        """A reader."""

        name = "some"

        def tasks(self) -> list[Task]:
            return []

    plugins = Plugins()
    judge = judge_class("some")
    plugins.register(plugin(lambda: [judge, Some]), "d", "1")
    assert plugins.of(Judge) == {"some": judge} and plugins.of(Reader) == {"some": Some}
    assert plugins.get(Reader, "some", "task.reader.type") is Some


SERVICE = """
import ajet

class Mine(ajet.Service):
    name = "mine"
    def address(self): return "here"
    def argv(self): return ["sleep", "60"]
    def healthy(self): return True
"""


def test_a_job_names_a_service_of_its_own_by_file_and_class(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SERVICE)
    layers = Layers()
    layers.add({"services": {"own": {"type": "mine.py:Mine"}}}, "job.yaml", tmp_path)
    assert build_service(layers, "own").address() == "here"


def test_the_core_brings_its_own_plugins_like_anyone() -> None:
    own = {key for key, installed in load_plugins().classes.items() if installed.distribution == "ajet"}
    assert {
        ("backbone", "debug"),
        ("algorithm", "grpo"),
        ("chat model", "openai"),
        ("chat model", "script"),
    } <= own


@pytest.mark.whole
def test_the_core_without_its_extras_imports_all_but_the_templates_engine() -> None:
    """In a process that has none of the libraries that `ajet[chat]` and plugins bring."""
    program = """
import importlib, pkgutil, sys


class Without:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"jinja2", "jsonschema_rs", "PIL", "renderers", "tokenizers", "torch", "transformers"}:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Without())
import ajet

names = [m.name for m in pkgutil.walk_packages(ajet.__path__, "ajet.") if not m.name.endswith("__main__")]
failed = []
for name in names:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        failed.append(name)
print(len(names), *failed)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    count, *failed = done.stdout.split()
    assert int(count) > 200 and failed == ["ajet.chat.jinja"], (done.stdout, done.stderr)


def test_a_model_without_an_engine_says_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown engine 'local'.* It comes with pip install 'ajet\[local\]'\.$"
    ):
        own_engine(Plugins(), "debug")
