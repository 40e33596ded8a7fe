"""docs/readers.md, run as it stands there."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from ajet import AjetError, Task, WorkflowOutput
from ajet.cli import run_program
from ajet.environments import ServedEnvironment, serving
from ajet.interfaces.reader import Reader, read_all
from ajet.job.config import Layers
from ajet.job.parts import build_plugin
from ajet.learning.settings import SelectorSettings
from ajet.learning.task_selector import make_selector
from ajet.plugins import load_plugins
from ajet.testing.readers import check_reader
from tests.pages import blocks, files, page

from .scripted_endpoint import Endpoint, endpoint, write_tasks

for needed in ("datasets", "gymnasium", "reasoning_gym", "datasketch"):
    pytest.importorskip(needed)
PAGE = page("docs/readers.md")
SECTIONS = dict(re.findall(r"^## ([\w ]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
FILES = files(PAGE)


def load(path: Path) -> Any:
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(system: str, given: Any) -> str:
    if system.startswith("You choose"):
        return json.dumps({"score": 1.0 if "tree" in json.dumps(given) else 0.0})
    return write_tasks(system, given)


@pytest.fixture
def model() -> Iterator[Endpoint]:
    with endpoint(answer) as served:
        yield served


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's files, some documents and a data set."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        rows = [{"question": f"{split} {i}", "answer": f"so\n#### {i}"} for i in range(4)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / f"{split}.parquet")
    (tmp_path / "docs").mkdir()
    for name in ("oaks", "elms", "yews", "limes", "planes", "maples"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"The {name} grow old.\n\nSome {name} do not.")
    return tmp_path


def readers(text: str, folder: Path, model: Endpoint | None = None, service: str = "") -> list[Reader]:
    """The readers of a job file's block."""
    text = text.replace("http://127.0.0.1:8000/v1", model.url if model else "")
    job = yaml.safe_load(text.replace("http://127.0.0.1:8080", service))
    layers = Layers()
    layers.add(job, "job.yaml", folder)
    built = [build_plugin(layers, Reader, layers.values["task"][key], f"task.{key}") for key in job["task"]]
    assert all(isinstance(reader, Reader) for reader in built)
    return built  # type: ignore[return-value]


def ajet(command: str, model: Endpoint, capsys: pytest.CaptureFixture[str]) -> str:
    """Run ``ajet …`` in this process; its output."""
    words = shlex.split(command.replace("http://127.0.0.1:8000/v1", model.url))
    assert words[0] == "ajet"
    code = run_program(words[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return printed.out + printed.err


def test_every_reader_has_its_place_on_the_page() -> None:
    names = {name for kind, name in load_plugins().classes if kind == "reader"}
    assert {"jsonl", "huggingface", "generated", "traces"} <= names
    ours = {n for n in names if load_plugins().classes["reader", n].distribution == "ajet-plugin-readers"}
    others = {"What all of them share", "Which tasks a step takes"}
    assert ours == set(SECTIONS) - others | {"random"}


@pytest.mark.whole
def test_the_first_block(folder: Path) -> None:
    text = blocks(PAGE, "yaml")[0]
    [reader, held_out] = readers(
        text.replace("jsonl, path: train.jsonl", "jsonl, query: problem, path: train.jsonl"), folder
    )
    assert len(check_reader(reader)) == 5
    assert 0 <= len(list(held_out.tasks())) < 5


@pytest.mark.whole
def test_the_selectors(folder: Path) -> None:
    section = SECTIONS["Which tasks a step takes"]
    [spec] = [yaml.safe_load(block)["task"] for block in blocks(section, "yaml")]
    tasks = check_reader(readers(yaml.safe_dump({"task": {"reader": spec["reader"]}}), folder)[0])

    def order(spec: dict[str, Any]) -> list[str]:
        selector = make_selector(SelectorSettings(**spec), tasks, batch_size=3, group_size=8, seed=0)
        return [task.query for task in islice(selector.order(1), 3)]

    medium, *others = order({**spec["selector"], "thompson_sampling": False})
    assert medium == "12 * 3" and len(others) == 2
    easy_first = order({"type": "easy_to_hard", "pass_rates": ["small_pass_rate"]})
    assert easy_first == ["3 + 4", "12 * 3", "17 * 23"]
    named = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert SelectorSettings.model_fields.keys() - {"type"} < named


@pytest.mark.whole
def test_jsonl(folder: Path) -> None:
    [reader] = readers(blocks(SECTIONS["jsonl"], "yaml")[0], folder)
    found = [(t.query, t.metadata["answer"]) for t in check_reader(reader)]
    assert found == [("12 * 3", "36"), ("100 - 1", "99"), ("9 * 9", "81")]


@pytest.mark.whole
def test_huggingface(folder: Path) -> None:
    train, test = (check_reader(r) for r in readers(blocks(SECTIONS["huggingface"], "yaml")[0], folder))
    assert len(train) == 4 and [t.metadata["answer"] for t in test] == ["0", "1"]


@pytest.mark.slow
def test_reasoning_gym(folder: Path) -> None:
    train, test = (check_reader(r) for r in readers(blocks(SECTIONS["reasoning_gym"], "yaml")[0], folder))
    assert len(train) == 100 and not {t.query for t in train} & {t.query for t in test}
    judge: dict[str, Any] = {}
    exec(blocks(SECTIONS["reasoning_gym"], "python")[0], judge)
    assert judge["judge"](train[0], WorkflowOutput(response=train[0].metadata["answer"])) == 1.0
    assert judge["judge"](train[0], WorkflowOutput(response="1")) < 0.1


@pytest.mark.whole
def test_gymnasium(folder: Path) -> None:
    import asyncio

    train, test = (check_reader(r) for r in readers(blocks(SECTIONS["gymnasium"], "yaml")[0], folder))
    assert len(train) == 200 and test[0].metadata["seed"] == 10000 and train[0].query == "Cross the lake."
    workflow: dict[str, Any] = {}
    exec(blocks(SECTIONS["gymnasium"], "python")[0], workflow)
    assert asyncio.run(workflow["run"](train[0])) == 0.0


@pytest.mark.whole
def test_environment(folder: Path, capsys: pytest.CaptureFixture[str], model: Endpoint) -> None:
    with serving(load(folder / "lake.py").Guess) as url:
        job = blocks(SECTIONS["environment"], "yaml")[0]
        train, test = (check_reader(r) for r in readers(job, folder, service=url))
        assert len(train) == 79 and len(test) == 20
        (folder / "script.yaml").write_text("- {say: '50'}\n")
        debug = (
            "backbone: {name: debug, debug: {answers: {type: script, path: script.yaml}, group_size: 1}}\n"
        )
        if ("judge", "environment") not in load_plugins().classes:
            job = job.replace("judge: {type: environment}", "judge: lake.py:judge")
            with (folder / "lake.py").open("a") as file:
                file.write("\n\ndef judge(task, output):\n    return output.metadata['score']\n")
        limited = job.replace("env_type: guess}", "env_type: guess, shuffle: 0, limit: 4}")
        (folder / "job.yaml").write_text(
            f"{limited}workflow: guess_agent.py:run\n{debug}".replace("http://127.0.0.1:8080", url)
        )
        out = ajet("ajet run job.yaml --steps 1 --set train.batch_size=4", model, capsys)
        assert "reward" in out
        import httpx2

        counts = httpx2.get(f"{url}/health").json()
        assert counts["created"] == counts["released"] >= 4 and counts["open"] == 0


def test_gymnasium_is_served_as_the_page_says() -> None:
    command = shlex.split(blocks(SECTIONS["environment"], "")[0])
    assert command[:3] == ["python", "-m", "ajet_readers.gymnasium_service"]
    from ajet_readers.gymnasium_service import served

    assert served(command[3], json.loads(command[command.index("--options") + 1])).env_type == "FrozenLake-v1"


@pytest.mark.whole
def test_generated(folder: Path, model: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    out = ajet(blocks(SECTIONS["generated"], "")[0], model, capsys)
    counts = [int(n) for n in re.findall(r"^(\d+) tasks in", out, re.MULTILINE)]
    assert sum(counts) == 12 and len((folder / "tasks.jsonl").read_text().splitlines()) == counts[1]
    [reader] = readers(blocks(SECTIONS["generated"], "yaml")[0], folder, model)
    tasks = check_reader(reader)
    assert tasks and {t.metadata["source"].rpartition("/")[2] for t in tasks} == {"examples.jsonl"}


@pytest.mark.whole
def test_traces(folder: Path, model: Endpoint, capsys: pytest.CaptureFixture[str]) -> None:
    command = blocks(SECTIONS["traces"], "")[0]
    assert "3 new tasks added" in ajet(command, model, capsys)
    assert "0 new tasks added" in ajet(command, model, capsys)
    [reader] = readers(blocks(SECTIONS["traces"], "yaml")[0], folder, model)
    [task] = check_reader(reader)
    assert (task.query, task.metadata["answer"]) == ("Which trees are red?", "Red maples and sumacs.")
    assert isinstance(task, Task) and task.metadata["feedback"]["score"] == 0.25


def test_every_filter_of_traces_is_told_with_its_fields() -> None:
    from ajet_readers.traces.filters import _KINDS

    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", SECTIONS["traces"], re.MULTILINE))
    assert rows.keys() == _KINDS.keys()
    for name, kind in _KINDS.items():
        told = set(re.findall(r"`(\w+)[`:]", rows[name].rpartition("|")[2]))
        assert told - {"drop", "response", "model", "keep"} <= kind.model_fields.keys()
        assert kind.model_fields.keys() - {"type"} <= told


class Nothing(ServedEnvironment):
    """An environment whose splits are empty."""

    env_type = "nothing"

    @classmethod
    def task_ids(cls, split: str, params: Any) -> list[str]:
        return []

    def start(self) -> str:
        return ""

    def step(self, message: Any) -> str:
        return ""

    def evaluate(self) -> float:
        return 0.0


AWAY = {"base_url": "http://127.0.0.1:9/v1", "model": "any", "retries": 0}
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a broken line": (
        {"type": "jsonl", "path": "broken.jsonl"},
        "broken.jsonl:2: not JSON (…). Fix the line or set",
    ),
    "a missing field": (
        {"type": "jsonl", "path": "good.jsonl", "query": "problem"},
        "good.jsonl:1: no field 'problem', which `query` names; the record has 'query', 'answer'.",
    ),
    "a missing column": (
        {"type": "huggingface", "path": "data", "query": "problem"},
        "data[train] row 0: no field 'problem', which `query` names; the record has 'question', 'answer'.",
    ),
    "an unknown split": (
        {"type": "huggingface", "path": "data", "split": "dev"},
        "data[dev]: ValueError: Unknown split \"dev\". Should be one of ['train', 'test'].",
    ),
    "an empty split": (
        {"type": "huggingface", "path": "data", "split": "test[:0]", "query": "question"},
        'data[test[:0]]: ValueError: Instruction "test[:0]" corresponds to no data!',
    ),
    "an empty file": (
        {"type": "jsonl", "path": "empty.jsonl"},
        "task.reader: the reader 'jsonl' yielded no task. Check its path and filters.",
    ),
    "no such service": (
        {"type": "environment", "url": "http://127.0.0.1:9", "env_type": "guess"},
        "http://127.0.0.1:9/get_env_profile: ConnectError: … Is the service running?",
    ),
    "an empty split of a service": (
        {"type": "environment", "env_type": "nothing", "split": "none"},
        "the split 'none' of 'nothing' is empty.",
    ),
    "no such endpoint": (
        {"type": "generated", "documents": "docs", "model": AWAY},
        "http://127.0.0.1:9/v1/chat/completions: ConnectError: … Is the server running?",
    ),
    "a broken trace": (
        {"type": "traces", "path": "broken.jsonl"},
        "broken.jsonl:2: not JSON (…). Fix the line.",
    ),
    "a broken document": (
        {"type": "generated", "documents": "broken.pdf", "model": AWAY},
        "broken.pdf: cannot be read as .pdf",
    ),
    "an unknown environment": (
        {"type": "gymnasium", "env": "NoSuchLake-v1"},
        "env NoSuchLake-v1: Environment `NoSuchLake` doesn't exist",
    ),
    "an unknown puzzle": (
        {"type": "reasoning_gym", "dataset": "countup"},
        "dataset 'countup': reasoning-gym has no such family; did you mean 'count_primes'.",
    ),
}
"""What is wrong: a reader, and what the job says; "…" stands for any text."""


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said_in_one_line_that_names_the_place(folder: Path, what: str) -> None:
    spec, said = WRONG[what]
    (folder / "broken.jsonl").write_text('{"messages": [], "query": "1"}\n{"query": "2", }\n')
    (folder / "good.jsonl").write_text('{"query": "1", "answer": "1"}\n')
    (folder / "empty.jsonl").write_text("")
    (folder / "broken.pdf").write_text("no document")
    with serving(Nothing) as url:
        spec = {**({"url": url} if "service" in what else {}), **spec}
        layers = Layers()
        layers.add({"task": {"reader": spec}}, "job.yaml", folder)
        with pytest.raises(AjetError) as raised:
            read_all(build_plugin(layers, Reader, spec, "task.reader"), "task.reader")  # type: ignore[arg-type]
    wanted = re.escape(said).replace("…", ".*")
    assert re.search(wanted, str(raised.value)), str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
