"""What `ajet run --dry-run` says of published models on 1, 8 and 16 GPUs, kept in the folder golden/: the lengths, and all
that differs from verl's defaults.

`AJET_WRITE_GOLDEN=1 make test-verl ARGS="-k golden"` writes the files anew.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path

import pytest

from ajet.cli.run import describe_job
from ajet.job.job import Job
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.lengths import architecture
from ajet_verl.plugin import Verl
from tests.plugins.verl.models import ARCHITECTURES, model
from tests.plugins.verl.test_alignment import job_of

GOLDEN = Path(__file__).parent / "golden"
NODES = {1: (1, 1), 8: (1, 8), 16: (2, 8)}
"""Nodes and GPUs on each, by the number of GPUs."""
MEMORY = 80 * 2**30


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has GPUs of 80 GiB."""
    monkeypatch.setattr("ajet_verl.alignment.platform_defaults", lambda backbone: {})
    monkeypatch.setattr("ajet_verl.scale.on_gpus", lambda: True)
    monkeypatch.setattr("ajet_verl.scale.gpu_count", lambda: 8)
    monkeypatch.setattr("ajet_verl.scale.gpu_memory", lambda: MEMORY)
    monkeypatch.setattr("os.cpu_count", lambda: 128)
    monkeypatch.setattr("ajet_verl.scale.find_spec", lambda name: name)


def job(folder: Path, name: str, gpus: int) -> tuple[Job, Verl]:
    nodes, each = NODES[gpus]
    model(folder, name)
    verl = {"trainer": {"nnodes": nodes, "n_gpus_per_node": each}}
    made = job_of(folder, model=f"./{name}", train={"batch_size": 64}, verl=verl)
    assert isinstance(made.backbone, Verl)
    return made, made.backbone


@pytest.mark.parametrize("gpus", NODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_dry_run_prints_the_golden_file(tmp_path: Path, name: str, gpus: int) -> None:
    made, _ = job(tmp_path, name, gpus)
    printed = describe_job(made, made.layers).replace(str(tmp_path), "models")
    head = "\n".join(line for line in printed.splitlines() if line.startswith("#")) + "\n"
    file = GOLDEN / f"{name}-{gpus}-gpus.txt"
    if os.environ.get("AJET_WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(head)
    assert head == file.read_text(), "see the first lines of this test's file"


@pytest.mark.parametrize("gpus", NODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_without_flash_attention_the_dry_run_prints_two_settings_more_which_verl_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, gpus: int
) -> None:
    monkeypatch.setattr("ajet_verl.scale.find_spec", lambda package: None)
    made, settings = job(tmp_path, name, gpus)
    validate(made, settings)
    printed = {" ".join(line.split()) for line in describe_job(made, made.layers).splitlines()}
    kept = {" ".join(line.split()) for line in (GOLDEN / f"{name}-{gpus}-gpus.txt").read_text().splitlines()}
    added = {
        line.split()[1] for line in printed - kept if line.startswith("# ") and "actor_rollout_ref" in line
    }
    model = "actor_rollout_ref.model"
    assert {f"{model}.override_config.attn_implementation", f"{model}.use_remove_padding"} <= added
    assert all(key.removeprefix("backbone.verl.").startswith(model) for key in added)


@pytest.mark.parametrize("gpus", NODES)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_settings_pass_verls_validation(tmp_path: Path, name: str, gpus: int) -> None:
    validate(*job(tmp_path, name, gpus))


def validate(made: Job, settings: Verl) -> None:
    """What verl does with its configuration before it starts anything."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = compose(made, settings, RunPaths(made.model, model_shape=architecture(made.model)))
    with contextlib.redirect_stdout(io.StringIO()):
        validate_config(config, need_reference_policy(config), need_critic(config))
