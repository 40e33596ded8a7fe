"""Tinker in docs/gpu.md: its job runs, and its tables are complete."""

import re

import pytest
import yaml

import ajet
from ajet_tinker.backbone import Tinker
from tests.pages import files, page
from tests.plugins.tinker.test_training import TASKS, share_of_digits, talk

PAGE = page("docs/gpu.md")


@pytest.mark.whole
def test_its_job_runs_on_a_service_at_another_address(folder, service, section, tmp_path):
    (tmp_path / "job.yaml").write_text(files(PAGE)["job.yaml"])
    shown = yaml.safe_load(files(PAGE)["job.yaml"])["backbone"]["tinker"]
    run = ajet.run(
        tmp_path / "job.yaml",
        workflow=talk,
        judge=share_of_digits,
        tasks=TASKS,
        model=str(folder),
        steps=1,
        run_dir=tmp_path / "runs",
        set={"backbone.tinker": {**section, **shown}, "rollout.group_size": 2, "train.batch_size": 2},
        progress=False,
    )
    assert len(run.metrics) == 1 and service.lora_configs[0]["rank"] == shown["rank"]


def test_its_table_has_every_key():
    table = PAGE.partition("## Keys")[2].partition("\n\nAll other")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == Tinker.model_fields.keys()
