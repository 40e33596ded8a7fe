"""A whole job at SkyRL's server, unmodified, on a CPU: `make test-matrix ARGS=skyrl` has it and the client that it speaks to."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import ajet
from tests.patience import PATIENCE
from tests.plugins.tinker.test_training import job
from tests.ports import free_port

BIN = Path(os.environ.get("AJET_LIBRARY_PYTHON", "")).parent
if not (BIN / "uv").exists():
    pytest.skip("SkyRL is not installed: make test-matrix", allow_module_level=True)
SKYRL = [str(BIN / "uv"), "run", "--active", "--no-project", "-m", "skyrl.tinker.api", "--backend", "jax"]
SETTINGS = '{"max_lora_adapters": 16, "max_lora_rank": 8, "train_micro_batch_size": 8, "sample_max_num_sequences": 8}'


@pytest.fixture(scope="module")
def server(base, tmp_path_factory):
    """Its address, and the folder of the model in it."""
    import httpx

    folder = tmp_path_factory.mktemp("skyrl")
    model, tokenizer = base
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    port = free_port()
    where = ["--host", "127.0.0.1", "--port", str(port), "--database-url", f"sqlite:///{folder}/tinker.db"]
    what = ["--base-model", str(folder / "model"), "--backend-config", SETTINGS]
    variables = {
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "VIRTUAL_ENV": str(BIN.parent),
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
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
    deadline = time.monotonic() + 10 * PATIENCE
    try:
        while True:
            assert process.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()[
                -3000:
            ]
            try:
                httpx.get(f"{url}/api/v1/healthz")
                break
            except httpx.TransportError:
                time.sleep(0.5)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TINKER_API_KEY", "tml-any")
            yield url, folder / "model"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def test_two_steps_are_trained_on_the_logprobs_of_sampling(server, tmp_path):
    url, model = server
    section = {
        "base_model": str(model),
        "base_url": url,
        "rank": 4,
        "timeout": 10 * PATIENCE,
        "train_unembed": False,
    }
    keys = {"rollout.group_size": 4, "rollout.timeout": 10 * PATIENCE, "train.save_every": 1}
    run = ajet.run(**job(model, section, tmp_path, **keys), steps=2)
    for line in run.metrics:
        assert line["tokens_trained"] > 0 and line["optimizer_steps"] == 1 and line["logprob_diff_max"] < 1e-2
    assert [line["step"] for line in run.metrics] == [1, 2]
