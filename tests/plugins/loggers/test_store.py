"""The logger `store` and `ajet fetch`: a run folder in a store, and back.

A folder of this machine takes the place of the store, and a real S3 server where one is installed: `make test-matrix ARGS=loggers`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ajet.rollout.checkpoints import changed, checkpoints, fault
from ajet.types import AjetError
from ajet_loggers.store import Copy, fetch
from tests.core.test_hooks import Training, training  # noqa: F401
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.program import Program

from .conftest import Run

LOCAL = {"run.lock", "running.json"}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.whole
def test_the_store_has_what_the_run_folder_has_without_checkpoints_that_the_run_removed(
    run: Run, tmp_path: Path
) -> None:
    result = run({"type": "store", "to": f"file://{tmp_path}/store"}, steps=4)
    kept = [path.name for path in checkpoints(result.run_dir)]
    copy = tmp_path / "store" / result.run_dir.name
    assert kept == ["step_000003", "step_000004"] == [path.name for path in checkpoints(copy)]
    here = {name: data for name, data in files(result.run_dir).items() if name not in LOCAL}
    assert files(copy) == here


@pytest.mark.whole
def test_a_run_goes_on_from_its_copy_when_its_own_folder_is_lost(
    run: Run,
    training: Training,  # noqa: F811
    tmp_path: Path,
    ajet: Program,
) -> None:
    logger = {"type": "store", "to": f"file://{tmp_path}/store"}
    first = run(logger, steps=2)
    url = f"file://{tmp_path}/store/{first.run_dir.name}"
    shutil.rmtree(first.run_dir)
    outcome = ajet("fetch", url, "--into", str(first.run_dir.parent))
    assert outcome.out.splitlines() == [
        f"fetched {first.run_dir}",
        f"go on with: ajet run --resume {first.run_dir}",
    ], outcome.err
    assert [changed(path) for path in checkpoints(first.run_dir)] == [None, None]
    second = run(logger, steps=3, resume=first.run_dir)
    assert (second.run_dir, second.steps) == (first.run_dir, 3)
    assert (tmp_path / "store" / first.run_dir.name / "checkpoints" / "step_000003").exists()


def test_a_checkpoint_is_complete_in_the_store_only_when_all_of_it_is_there(run: Run, tmp_path: Path) -> None:
    """The journal is sent before the checkpoint, and files.json, which makes it one, last."""
    result = run(steps=1)
    copy = Copy(result.run_dir, f"file://{tmp_path}/store", {})
    sent: list[str] = []
    put = copy._store.put_file

    def watched(path: str, name: str) -> None:
        sent.append(name.partition(f"{result.run_dir.name}/")[2])
        partly = tmp_path / "store" / result.run_dir.name / "checkpoints" / "step_000001"
        assert not partly.exists() or fault(partly) is not None
        put(path, name)

    copy._store.put_file = watched
    try:
        copy.update()
    finally:
        copy._store.put_file = put
    assert sent.index("episodes.jsonl") < min(n for n, name in enumerate(sent) if "checkpoints/" in name)
    assert sent[-1] == "checkpoints/step_000001/files.json"


def test_only_what_has_changed_is_sent_again(run: Run, tmp_path: Path) -> None:
    result = run(steps=1)
    copy = Copy(result.run_dir, f"file://{tmp_path}/store", {})
    copy.update()
    stored = tmp_path / "store" / result.run_dir.name
    before = {name: (stored / name).stat().st_mtime_ns for name in files(stored)}
    (result.run_dir / "feedback.jsonl").write_text("{}\n")
    (result.run_dir / "batches" / ".step_000002.npz").write_text("being written")
    (result.run_dir / "checkpoints" / "step_000001" / ".metadata").write_text(
        "of torch's distributed checkpoints"
    )
    copy.update()
    after = {name: (stored / name).stat().st_mtime_ns for name in files(stored)}
    assert {name for name in after if after[name] != before.get(name)} == {
        "feedback.jsonl",
        "checkpoints/step_000001/.metadata",
    }


def test_a_resumed_run_removes_what_an_earlier_process_has_stored_and_sends_nothing_damaged(
    run: Run, tmp_path: Path
) -> None:
    result = run(steps=1)
    store = tmp_path / "store" / result.run_dir.name
    Copy(result.run_dir, f"file://{tmp_path}/store", {}).update()
    assert (store / "checkpoints" / "step_000001").is_dir()
    ours = result.run_dir / "checkpoints"
    shutil.copytree(ours / "step_000001", ours / "step_000002")
    (ours / "step_000001").rename(ours / "damaged_step_000001")
    again = Copy(result.run_dir, f"file://{tmp_path}/store", {})
    again.update()
    there = {name.split("/")[1] for name in files(store) if name.startswith("checkpoints/")}
    assert there == {"step_000002"}


@pytest.mark.whole
def test_a_store_that_cannot_be_reached_costs_the_run_nothing_and_is_told(
    run: Run, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")
    options = {"endpoint": f"http://127.0.0.1:{free_port()}", "client_options": {"allow_http": True}}
    options |= {"retry_config": {"max_retries": 0, "retry_timeout": 1}, "region": "any"}
    result = run({"type": "store", "to": "s3://bucket/runs", "options": options}, steps=2)
    assert result.steps == 2
    first, last = said()
    assert first.startswith("logger store: sending to s3://bucket/runs failed (")
    assert last == "logger store: 3 of 3 copies of the run folder were not sent to s3://bucket/runs"


def test_fetching_never_replaces_a_folder_and_says_what_is_missing(tmp_path: Path, ajet: Program) -> None:
    (tmp_path / "store" / "a").mkdir(parents=True)
    (tmp_path / "store" / "a" / "job.yaml").write_text("{}")
    (tmp_path / "runs" / "a").mkdir(parents=True)
    refused = ajet("fetch", f"file://{tmp_path}/store/a", "--into", str(tmp_path / "runs"))
    assert refused.code and f"{tmp_path}/runs/a: exists; remove it" in refused.err
    missing = ajet("fetch", f"file://{tmp_path}/store/b", "--into", str(tmp_path / "runs"))
    assert missing.code and "the store has no such folder" in missing.err
    unknown = ajet("fetch", "nowhere://bucket/b", "--into", str(tmp_path / "runs"))
    assert unknown.code and "nowhere" in unknown.err and "Traceback" not in unknown.err


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an S3 server with a bucket."""
    if find_spec("moto") is None:
        pytest.skip("moto, an S3 server, is not installed: make test-matrix")
    import boto3

    port = free_port()
    address = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}
    for name, value in {**keys, "AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}.items():
        monkeypatch.setenv(name, value)
    log = (tmp_path / "moto.log").open("w")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + PATIENCE
        while "Running on" not in (tmp_path / "moto.log").read_text():
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        yield address
    finally:
        server.terminate()
        server.wait()


def test_a_run_goes_on_from_an_s3_bucket(run: Run, s3: str, ajet: Program) -> None:
    logger = {"type": "store", "to": "s3://bucket/runs"}
    first = run(logger, steps=4)
    before = files(first.run_dir)
    shutil.rmtree(first.run_dir)
    outcome = ajet("fetch", f"s3://bucket/runs/{first.run_dir.name}", "--into", str(first.run_dir.parent))
    assert outcome.code == 0, outcome.err
    assert files(first.run_dir) == {name: data for name, data in before.items() if name not in LOCAL}
    assert run(logger, steps=5, resume=first.run_dir).steps == 5


def test_a_name_in_the_store_cannot_lead_out_of_the_fetched_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    monkeypatch.setattr(fsspec.filesystem("memory"), "find", lambda folder: [f"{folder}/../../hostile"])
    with pytest.raises(AjetError, match="leads out of the folder"):
        fetch("memory://runs/a", tmp_path / "runs", {})
    assert not list(tmp_path.rglob("hostile"))


def test_a_link_in_the_run_folder_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/job.yaml").write_text("{}")
    (tmp_path / "run/run.log").symlink_to(tmp_path / "secret")
    Copy(tmp_path / "run", f"file://{tmp_path}/store", {}).update()
    assert files(tmp_path / "store/run") == {"job.yaml": b"{}"}
