"""A whole job at SkyRL's server, unmodified, on a CPU: `make test-matrix ARGS=skyrl` has it and the client that it speaks to."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE
from tests.ports import free_port

BIN = Path(os.environ.get("AJET_LIBRARY_PYTHON", "")).parent
if not (BIN / "uv").exists():
    pytest.skip("SkyRL is not installed: make test-matrix", allow_module_level=True)
SKYRL = [str(BIN / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api", "--backend", "jax"]
SETTINGS = '{"max_lora_adapters": 16, "max_lora_rank": 8, "train_micro_batch_size": 8, "sample_max_num_sequences": 8}'
# Before Python 3.12, which SkyRL asks for, pydantic takes no TypedDict of the standard library. Python runs this first.
OLDER_PYTHON = """
import sys, typing
if sys.version_info < (3, 12):
    import typing_extensions
    typing.TypedDict = typing_extensions.TypedDict
"""
AGENT = """
import httpx2

async def run(task, tuner):
    ask = {"model": "any", "messages": [{"role": "user", "content": task.query}], "max_tokens": 8}
    headers = {"authorization": f"Bearer {tuner.api_key}"}
    async with httpx2.AsyncClient(headers=headers, timeout=300) as client:
        answer = await client.post(f"{tuner.base_url}/chat/completions", json=ask)
    return answer.raise_for_status().json()["choices"][0]["message"]["content"] or ""

def judge(task, output):
    return sum(map(ord, output.response)) % 100 / 100  # so that the answers to a task differ
"""


@pytest.fixture(scope="module")
def server(base, tmp_path_factory):
    """Its address, and the folder of the model in it."""
    import httpx

    folder = tmp_path_factory.mktemp("skyrl")
    model, tokenizer = base
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "python").mkdir()
    (folder / "python" / "sitecustomize.py").write_text(OLDER_PYTHON)
    port = free_port()
    where = ["--host", "127.0.0.1", "--port", str(port), "--database-url", f"sqlite:///{folder}/tinker.db"]
    what = ["--base-model", str(folder / "model"), "--backend-config", SETTINGS]
    variables = {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # it compiles for longer than it runs
        "HF_HUB_OFFLINE": "1",
        "VIRTUAL_ENV": str(BIN.parent),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder / "python"),
    }
    log = (folder / "log").open("w")
    process = subprocess.Popen(
        [*SKYRL, *what, *where, "--checkpoints-base", str(folder / "checkpoints")],
        cwd=folder,
        env=os.environ | variables,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 4 * PATIENCE
    try:
        while True:
            said = (folder / "log").read_text()[-3000:]
            assert process.poll() is None and time.monotonic() < deadline, said
            try:
                httpx.get(f"{url}/api/v1/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.5)
        yield url, folder / "model"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def test_a_job_learns_goes_on_from_its_checkpoint_and_passes_the_audit(server, tmp_path):
    url, model = server

    def ajet(*command):
        done = subprocess.run(
            [sys.executable, "-m", "ajet", *command],
            cwd=tmp_path,
            env=os.environ | {"TINKER_API_KEY": "tml-any", "TINKER_BASE_URL": url},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (tmp_path / "agent.py").write_text(AGENT)
    tasks = [json.dumps({"id": f"t{i}", "query": f"say {i}"}) for i in range(4)]
    (tmp_path / "tasks.jsonl").write_text("\n".join(tasks))
    job = {
        "workflow": "agent.py:run",
        "judge": "agent.py:judge",
        "task": {"reader": "tasks.jsonl"},
        "model": str(model),
        "backbone": {
            "name": "tinker",
            "tinker": {"base_model": str(model), "rank": 4, "timeout": 2 * PATIENCE, "train_unembed": False},
        },
        "rollout": {"group_size": 4, "timeout": 2 * PATIENCE},
        "train": {"steps": 2, "batch_size": 2, "learning_rate": 2e-2, "save_every": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    ajet("run", "job.yaml")
    [run] = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["tokens_trained"] > 0 and line["optimizer_steps"] == 1 and line["logprob_diff_max"] < 1e-4
    ajet("run", "--resume", str(run), "--steps", "3")
    ajet("audit", str(run))
