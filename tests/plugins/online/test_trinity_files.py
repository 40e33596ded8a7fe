"""explorer.yaml and trainer.yaml of Trinity-RFT's online training."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import openai
import pytest
import yaml

from ajet.cli import run_program
from ajet.job.layers import job_layers
from ajet_online.schema import Stage
from ajet_online.settings import OnlineSettings, command_of, online_settings
from ajet_online.store import TraceStore
from ajet_online.versions import Versions
from ajet_trinity_files.keys import TABLE
from tests.patience import PATIENCE
from tests.tiny import save_tiny_model

SHARED: dict[str, Any] = {
    "project": "shop",
    "name": "first",
    "checkpoint_root_dir": "kept",
    "model": {"model_path": "model", "max_model_len": 128, "max_response_tokens": 6, "temperature": 0.7},
    "algorithm": {"algorithm_type": "ppo"},
    "cluster": {"node_num": 1, "gpu_per_node": 4},
    "buffer": {
        "train_batch_size": 2,
        "trainer_input": {"experience_buffer": {"name": "exp_buffer", "storage_type": "sql"}},
    },
    "synchronizer": {"sync_method": "checkpoint", "sync_interval": 1},
    "monitor": {"monitor_type": "tensorboard"},
}
EXPLORER: dict[str, Any] = {
    "mode": "serve",
    **SHARED,
    "explorer": {
        "rollout_model": {"engine_num": 2, "enable_openai_api": True, "enable_history": True},
        "service_status_check_interval": 10,
        "listen_address": "127.0.0.1",
        "proxy_port": 0,
    },
}
TRAINER: dict[str, Any] = {
    "mode": "train",
    **SHARED,
    "trainer": {
        "save_interval": 16,
        "save_hf_checkpoint": "always",
        "max_checkpoints_to_keep": 4,
        "total_steps": 1,
    },
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "explorer.yaml").write_text(yaml.safe_dump(EXPLORER))
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(TRAINER))
    return tmp_path


def test_each_file_has_its_command_and_both_the_same_store(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [command_of(folder / f"{name}.yaml") for name in ("explorer", "trainer", "job")] == [
        "explore",
        "train",
        "job",
    ]
    explorer, trainer = (job_layers(Path(f"{name}.yaml")) for name in ("explorer", "trainer"))
    serving, training = online_settings(explorer), online_settings(trainer)
    assert serving.store == training.store == str(folder / "kept/shop/first/exp_buffer.db")
    assert (serving.port, serving.host, serving.keyless, serving.poll) == (0, "127.0.0.1", True, 10)
    assert training.rollback.ratings == trainer.job().train.batch_size == 2
    assert training.folder == str(folder / "kept/shop/first") and training.updates == 1
    job = trainer.job()
    assert (job.train.algorithm["type"], job.train.batch_size, job.train.keep_last) == ("ppo", 2, 4)
    assert "explorer.yaml: no effect of cluster.{gpu_per_node,node_num}" in capsys.readouterr().err


def test_where_the_file_is_silent_the_explorer_listens_where_trinitys_does(folder: Path) -> None:
    (folder / "explorer.yaml").write_text(yaml.safe_dump({"mode": "serve", **SHARED}))
    settings = online_settings(job_layers(Path("explorer.yaml")))
    assert (settings.host, settings.port) == ("0.0.0.0", 8010)


@pytest.mark.parametrize(
    ("address", "options", "asked"),
    [("127.0.0.1", [], False), ("0.0.0.0", [], True), ("127.0.0.1", ["--key", "k" * 20], True)],
)
def test_a_key_is_asked_for_unless_the_address_is_the_loopback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, address: str, options: list[str], asked: bool
) -> None:
    explorer = {**EXPLORER, "explorer": {**EXPLORER["explorer"], "listen_address": address}}
    (folder / "explorer.yaml").write_text(yaml.safe_dump(explorer))
    given: list[Any] = []
    monkeypatch.setattr(
        "ajet_online.processes.given",
        lambda path, **_: Mock(settings=online_settings(job_layers(Path(path)))),
    )
    monkeypatch.setattr("ajet_online.processes.explore", lambda what, keys, **_: given.append(keys))
    assert run_program(["online", "explorer.yaml", *options]) == 0
    for secret in (None, "EMPTY", "EMPTY~run-1"):
        found = given[0].find(secret)
        assert (found is None) is asked
        assert found is None or (found.key.may("feedback") and not found.key.may("admin"))


def test_a_file_of_another_mode_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "both.yaml").write_text(yaml.safe_dump(SHARED))
    assert run_program(["online", "both.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == "error: both.yaml: is a configuration of Trinity-RFT. Its job file is printed by: "
        "ajet config from-trinity both.yaml\n"
    )


def test_the_settings_that_the_table_names_exist() -> None:
    named = {
        key.rpartition(".")[2]
        for rule in TABLE.values()
        for key in rule.keys
        if key.startswith("plugins.online.")
    }
    assert named and named <= set(OnlineSettings.model_fields)


@pytest.mark.slow
def test_the_files_serve_record_rate_and_train(folder: Path, tokenizer: Any) -> None:
    save_tiny_model(folder / "model", tokenizer)
    ajet = [sys.executable, "-m", "ajet", "online"]
    explorer = subprocess.Popen([*ajet, "explorer.yaml"], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert explorer.stdout
        printed = explorer.stdout.readline()
        (url,) = re.findall(r"(http://\S+/v1),", printed)
        client = openai.OpenAI(base_url=url, api_key="EMPTY")
        for number in range(2):
            ask: Any = [{"role": "user", "content": f"say {number}"}]
            reply = client.chat.completions.create(model="model", messages=ask)
            feedback = {"msg_ids": [reply.id], "reward": float(number), "task_id": reply.id, "run_id": "0"}
            assert httpx.post(f"{url}/feedback", json=feedback).is_success
        assert httpx.get(f"{url}/models").is_success
    finally:
        explorer.terminate()
        explorer.communicate(timeout=PATIENCE)
    train = [*ajet, "trainer.yaml"]
    trained = subprocess.run(train, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)
    assert trained.returncode == 0, trained.stderr
    store = TraceStore.open(str(folder / "kept/shop/first/exp_buffer.db"))
    first, second = Versions(store).all()
    store.close()
    assert (first.number, second.stage) == (0, Stage.PUBLISHED)
    assert Path(second.path).is_relative_to(folder / "kept/shop/first")
