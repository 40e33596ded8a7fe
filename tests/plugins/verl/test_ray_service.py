"""`--with ray`: a cluster that jobs share, and that nothing is left of."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine
from tests.ports import free_port

DRIVER = """
import sys
from pathlib import Path

import ray

from ajet.job.config import Layers
from ajet.services.supervisor import with_services

layers = Layers()
options = ["--num-cpus=1", "--num-gpus=3", "--object-store-memory=100000000"]
layers.set("services.ray", {"port": int(sys.argv[1]), "options": options}, "test", Path.cwd())
with with_services(layers, ["ray"], print):
    ray.init(address=f"127.0.0.1:{sys.argv[1]}", log_to_driver=False)
    print("GPUs", ray.cluster_resources()["GPU"])
    ray.shutdown()
"""


def test_the_service_is_a_cluster_that_jobs_join_and_is_stopped_by_the_last(
    machine: Machine, tmp_path: Path
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    printed = machine.run(sys.executable, str(driver), str(free_port()), seconds=4 * PATIENCE)
    assert "service ray: healthy" in printed and "GPUs 3.0" in printed and "service ray: stopped" in printed
