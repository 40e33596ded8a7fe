"""Which engine answers where nothing is trained: the one that is named, else the fastest that can."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ajet
from ajet import EnginePlugin
from ajet.job.config import Layers
from ajet.job.job import Job
from ajet.job.prepare import prepare
from ajet.plugins import load_plugins
from ajet.runs.runtime import answering_engine, preferred_engine
from ajet.types import AjetError, ConfigError


class Fast(EnginePlugin):
    """An engine that is faster on this machine and cannot serve adapters."""

    name = "fast"

    @classmethod
    def preferred(cls, model: str) -> bool:
        return "adapters" not in model

    def build(self, model: str, seed: int, progress: Any) -> Any:
        return f"fast {model}"

    def tokenizer(self, model: str, seed: int) -> Any:
        raise NotImplementedError


class Own(Fast):
    """The engine with which a backbone samples."""

    name = "own"
    backbone = "mine"


class Counted(EnginePlugin):
    """An engine with fields of its own."""

    name = "counted"
    chats: Path
    order: int = 3

    def build(self, model: str, seed: int, progress: Any) -> Any:
        return self.chats, self.order

    tokenizer = Fast.tokenizer


class Brings:
    @ajet.hookimpl
    def ajet_plugins(self) -> list[type[EnginePlugin]]:
        return [Fast, Own, Counted]


def made(tmp_path: Path, **values: Any) -> Job:
    (tmp_path / "agent.py").write_text("def run(task):\n    return 1.0\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "query": "?"}\n')
    load_plugins().register(Brings(), "fast", "1")
    layers = Layers()
    layers.add(
        {"task": {"reader": "tasks.jsonl"}, "workflow": "agent.py:run", "model": "m", **values}, "", tmp_path
    )
    return prepare(layers)


@pytest.fixture(autouse=True)
def _own_plugins() -> Iterator[None]:
    load_plugins.cache_clear()
    yield
    load_plugins.cache_clear()


def test_auto_takes_the_engine_that_is_faster_on_this_machine(tmp_path: Path) -> None:
    job = made(tmp_path)
    assert (
        preferred_engine(job.plugins, "m") == "fast"
        and preferred_engine(job.plugins, "adapters/x") == "local"
    )
    assert answering_engine(job) == f"fast {tmp_path / 'm'}"


def test_a_backbones_own_engine_answers_where_none_is_preferred(tmp_path: Path) -> None:
    plugins = made(tmp_path).plugins
    assert preferred_engine(plugins, "adapters/x", "mine") == "own"
    assert preferred_engine(plugins, "adapters/x", "debug") == "local", "debug brings no engine"
    assert preferred_engine(plugins, "m", "mine") == "fast"


@pytest.mark.parametrize(
    "values",
    [
        {"eval": {"engine": "local"}},
        {"run": {"deterministic": True}},
        {"backbone": {"name": "local", "local": {"device": "cpu"}}},
    ],
    ids=["named", "deterministic", "on a device"],
)
def test_the_local_engine_answers_where_the_job_asks_for_what_it_alone_can(
    tmp_path: Path, values: Any
) -> None:
    with pytest.raises(AjetError, match=r"model folder .*/m: no config\.json"):  # as the local engine says it
        answering_engine(made(tmp_path, **values))


def test_the_fields_of_an_engine_stand_in_the_job_beside_its_name(tmp_path: Path) -> None:
    spec = {"type": "counted", "chats": "chats.jsonl", "order": 4}
    assert answering_engine(made(tmp_path, eval={"engine": spec})) == (tmp_path / "chats.jsonl", 4)


def test_a_missing_field_of_an_engine_is_named_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.engine\.chats.*is required"):
        answering_engine(made(tmp_path, eval={"engine": "counted"}))


def test_an_engine_that_is_not_installed_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.engine.*'fats'.*did you mean 'fast'"):
        answering_engine(made(tmp_path, eval={"engine": "fats"}))


@pytest.mark.parametrize(
    ("build", "cuda", "folder", "preferred"),
    [
        (("vllm", "1"), True, "", True),
        (("vllm", "1"), False, "", False),
        (None, True, "", False),
        (("vllm", "1"), True, "adapters", False),
    ],
    ids=["vllm and cuda", "no cuda", "no vllm", "adapters"],
)
def test_vllm_is_preferred_where_it_and_cuda_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any, cuda: bool, folder: str, preferred: bool
) -> None:
    torch = pytest.importorskip("torch")
    from ajet_vllm.plugin import VLLMEnginePlugin

    (tmp_path / folder).mkdir(exist_ok=True)
    monkeypatch.setattr("ajet_vllm.plugin.installed", lambda: build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    assert VLLMEnginePlugin.preferred(str(tmp_path)) is preferred
