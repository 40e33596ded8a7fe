"""`ajet online status`, `export` and `prune`, and the reader `store`."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from ajet import EnginePlugin
from ajet.cli import run_program
from ajet.interfaces.progress import Silent
from ajet.plugins import InstalledPlugin, load_plugins
from ajet.testing.readers import check_reader
from ajet.types import ConfigError
from ajet_online.keys import Keys
from ajet_online.processes import given
from ajet_online.reader import StoreReader
from ajet_online.store import TraceStore
from tests.e2e.conftest import tiny_model  # noqa: F401 - a fixture
from tests.patience import PATIENCE
from tests.plugins.online.conftest import trace

NOBODY = 65534


@pytest.fixture
def where(file: Path) -> str:
    """A store with a conversation of two replies, of which the second was corrected, and a reply that was liked."""
    store = TraceStore.open(str(file))
    later = [{"role": "user", "content": [{"type": "text", "text": "and?"}]}]
    store.record(
        [trace("a", at=time.time()), trace("b", at=time.time(), conversation="a", parent="a", messages=later)]
    )
    store.record([trace("liked", at=1.0), trace("nothing", at=1.0)])
    store.rate(["b"], 0.0, "t", "0", comment="wrong", correction="so it is")
    store.rate(["liked"], 1.0, "u", "0")
    store.commit("u")
    store.close()
    return str(file)


def test_the_status(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["online", "status", where]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"recorded +2\nrated +1\nready +1\nleased +0", printed)
    assert re.search(r"VERSION +STAGE +VALIDATION +RATED +RATING +REASON\n7 +2 +0\.500", printed)
    assert run_program(["online", "status", where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["bytes"] > 10_000
    assert found["traces"]["ready"] == 1 and found["versions"]["7"]["rating"] == 0.5


def other_files(folder: Path) -> dict[str, Path]:
    """Files that AgentJet must not change: stores of an earlier version, other databases, and text."""
    files = {name: folder / f"{name}.db" for name in ("customers", "empty", "earlier", "text")}
    with closing(sqlite3.connect(files["customers"])) as made:
        made.execute("CREATE TABLE customers (name TEXT)")
    files["empty"].touch()
    files["text"].write_text("no database")
    TraceStore.open(str(files["earlier"])).close()
    with closing(sqlite3.connect(files["earlier"])) as made, made:
        made.execute("DROP INDEX traces_tools")
        made.execute("UPDATE alembic_version SET version_num = '0003'")
    return files


@pytest.mark.parametrize("command", ["status", "export", "prune", "rollback"])
@pytest.mark.parametrize("kind", ["customers", "empty", "earlier", "text"])
def test_commands_leave_what_is_no_store_of_this_version_as_it_is(
    command: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = other_files(tmp_path)[kind]
    before = file.read_bytes()
    further = {"export": [str(tmp_path / "out.jsonl")], "prune": ["--older-than", "1d"]}
    assert run_program(["online", command, str(file), *further.get(command, [])]) != 0
    assert file.name in (said := capsys.readouterr().err) and len(said.splitlines()) == 1
    assert file.read_bytes() == before and not (tmp_path / "out.jsonl").exists()


def test_a_store_is_not_made_in_a_database_of_another_program(tmp_path: Path) -> None:
    file = other_files(tmp_path)["customers"]
    before = file.read_bytes()
    with pytest.raises(ConfigError, match=r"customers\.db: is a database of something else\."):
        TraceStore.open(str(file))
    assert file.read_bytes() == before


def test_a_store_on_a_volume_that_is_read_only_is_read(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        file = Path(name, "traces.db")
        shutil.copyfile(where, file)
        Path(name).chmod(0o555)
        root = os.geteuid() == 0  # who may write everywhere
        try:
            if root:
                os.seteuid(NOBODY)
            status = run_program(["online", "status", str(file), "--json"])
        finally:
            if root:
                os.seteuid(0)
        assert [path.name for path in Path(name).iterdir()] == ["traces.db"]
        Path(name).chmod(0o755)
    assert status == 0 and json.loads(capsys.readouterr().out)["traces"]["ready"] == 1


def test_an_export_of_a_damaged_store_leaves_no_file(where: str, tmp_path: Path) -> None:
    store = bytearray(Path(where).read_bytes())
    store[4096 * 3 :] = b"\xff" * (len(store) - 4096 * 3)
    Path(where).write_bytes(store)
    assert run_program(["online", "export", where, str(tmp_path / "out" / "traces.jsonl")]) != 0
    assert not list((tmp_path / "out").glob("*"))


def test_an_export_has_every_trace(where: str, tmp_path: Path) -> None:
    assert run_program(["online", "export", where, str(tmp_path / "out" / "traces.jsonl")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "traces.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["a", "b", "liked", "nothing"]
    assert (rows[1]["tokens"], rows[1]["parent"], rows[1]["state"]) == ([3, 4, 5], "a", "rated")
    assert rows[1]["correction"] == "so it is"


def test_old_conversations_are_pruned(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_program(["online", "prune", where, "--older-than", "1d"]) == 0
    assert capsys.readouterr().out == "2 traces deleted\n"
    store = TraceStore.open(where)
    assert [t.id for t in store.all()] == ["a", "b"]
    store.close()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["status", "nowhere.db"], "store nowhere.db: the file does not exist"),
        (["prune", "{}", "--older-than", "soon"], "--older-than soon: is not an age"),
        (["export", "{}", "/"], "OUTPUT /: is a directory"),
    ],
)
def test_wrong_arguments_are_named(
    where: str, arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_program(["online", *(argument.format(where) for argument in arguments)]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.whole
def test_replies_with_feedback_are_tasks(where: str) -> None:
    tasks = check_reader(StoreReader(store=where))
    assert [task.id for task in tasks] == ["b", "liked"]
    corrected, liked = tasks
    assert corrected.query == "and?"
    assert [message["role"] for message in corrected.messages] == ["user", "assistant", "user"]
    assert corrected.metadata["answer"] == "so it is" and corrected.metadata["comment"] == "wrong"
    assert (liked.query, liked.metadata["answer"], liked.metadata["reward"]) == ("hi", "hello", 1.0)
    strict: Any = StoreReader(store=where, liked=2.0)
    assert "answer" not in list(strict.tasks())[1].metadata


class Scripted(EnginePlugin):
    """An engine that reads a file."""

    name = "scripted-by-file"
    script: Path

    def build(self, model: str, seed: int, progress: Any) -> Any:
        return self.script

    def tokenizer(self, model: str, seed: int) -> Any:
        return None


def test_paths_of_the_engine_are_relative_to_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = InstalledPlugin(Scripted.kind, Scripted.name, Scripted, "tests", "1")
    monkeypatch.setitem(load_plugins().classes, (Scripted.kind, Scripted.name), installed)
    file = tmp_path / "job.yaml"
    file.write_text("model: m\neval: {engine: {type: scripted-by-file, script: said.txt}}\n")
    asked: Any = dict.fromkeys(("engine", "store", "temperature", "max_tokens", "seed"))
    exploring = given(str(file), **asked, sets=(), progress=Silent())
    assert exploring.build("m") == tmp_path / "said.txt"


@pytest.mark.whole
def test_a_checkpoint_is_explored(tmp_path: Path, tiny_model: Path) -> None:  # noqa: F811
    command = [
        sys.executable,
        "-m",
        "ajet",
        "online",
        "explore",
        str(tiny_model),
        "--port",
        "0",
        "--max-tokens",
        "8",
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        printed = process.stdout.readline() + process.stdout.readline()
        url, key = re.findall(r"(http://\S+/v1),.*\nkey: (\S+)", printed)[0]
        client = openai.OpenAI(base_url=url, api_key=key)
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        answered = httpx.post(
            url + "/feedback",
            json={"msg_ids": [reply.id], "reward": 1, "task_id": "t", "details": True},
            headers={"Authorization": f"Bearer {key}"},
        )
        assert answered.json()["rated"] == [reply.id]
    finally:
        process.terminate()
        rest = process.communicate(timeout=PATIENCE)[0]
    assert "1 calls answered" in rest
    store = TraceStore.open(str(tmp_path / "traces.db"))
    (found,) = store.all()
    store.close()
    assert (found.key, found.reward) == ("default", 1.0) and len(found.tokens) <= 8


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "app: {key: 0123456789abcdef, roles: [chat]}\nrater: {key: fedcba9876543210, roles: [feedback]}"
    )
    found = Keys.read(file)
    app, rater = found.find("0123456789abcdef"), found.find("fedcba9876543210")
    assert (
        app
        and rater
        and (app.key.name, tuple(app.key.roles), tuple(rater.key.roles)) == ("app", ("chat",), ("feedback",))
    )
    assert found.find("0123456789abcde") is None and found.find(None) is None
    assert Keys.single("0123456789abcdef").are_one and not found.are_one


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "expected keys"),
        ("app: secret", "app: expected"),
        ("app: {key: short}", "at least 16 printable"),
        ("app: {key: 0123456789abcdef, roles: [root]}", "expected a list of some of chat, feedback"),
    ],
)
def test_faults_in_keys_are_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "keys.yaml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        Keys.read(tmp_path / "keys.yaml")
