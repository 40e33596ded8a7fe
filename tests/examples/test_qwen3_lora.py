"""examples/qwen3_lora: its job is checked without the Hub."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.e2e
def test_the_job_is_checked_without_fetching_anything(tmp_path: Path) -> None:
    for name in ("math", "qwen3_lora"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    folder = tmp_path / "qwen3_lora"
    (folder / "tasks").mkdir()
    for split in ("train", "validation"):
        (folder / "tasks" / f"{split}.jsonl").write_text('{"id": "1", "query": "1 + 1 =", "answer": "2"}\n')
    done = subprocess.run(
        [sys.executable, "-m", "ajet", "run", "job.yaml", "--dry-run", "--memory-limit", "6GiB"],
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    job = yaml.safe_load(done.stdout)
    assert job["model"] == "Qwen/Qwen3-0.6B"
    assert job["targets"]["policy"]["lora"]["rank"] == 16
    assert job["backbone"]["local"]["memory_limit"] == "6GiB"
    assert not (tmp_path / "hub").exists()
