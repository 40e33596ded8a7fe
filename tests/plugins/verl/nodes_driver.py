"""Run by test_nodes.py on a cluster of two nodes: what `launch` does before verl, and what Ray says of a dead actor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import ray

from ajet.interfaces.progress import Silent
from ajet.types import AjetError
from ajet_verl.alignment import verl_defaults
from ajet_verl.cluster import check_nodes, cluster
from ajet_verl.failures import is_machine_failure, why


class Shown(Silent):
    """Prints."""

    def say(self, text: str) -> None:
        print("SAID", text, flush=True)


@ray.remote(num_cpus=0)
class Worker:
    """Ends its process."""

    def end(self) -> None:
        os._exit(1)


@ray.remote(num_cpus=0)
class Trainer:
    """As verl's task runner: an error of its worker is its own."""

    def run(self) -> None:
        ray.get(Worker.remote().end.remote())


@ray.remote(num_cpus=0, resources={"other": 1})
def variable(name: str) -> str:
    """Of the other node's processes."""
    return os.environ.get(name, "not set")


def main(folder: Path) -> None:
    """Print what the test asserts."""
    os.environ |= {"HF_TOKEN": "of the user", "DATABASE_URL": "db", "UNNAMED": "1"}
    with cluster(verl_defaults("dp"), os.environ["RAY_ADDRESS"], ("DATABASE_URL",)):
        for name in ("HF_TOKEN", "DATABASE_URL", "UNNAMED"):
            print("VARIABLE", name, ray.get(variable.remote(name)), flush=True)
        try:
            check_nodes(ray, folder, Shown())
            print("READY", flush=True)
        except AjetError as error:
            print("REFUSED", error, flush=True)
        try:
            ray.get(Trainer.remote().run.remote())
        except Exception as error:
            print("FAILED", is_machine_failure(error), why(error), flush=True)
    print("LEFT", [path.name for path in folder.glob(".shared*")], flush=True)


main(Path(sys.argv[1]))
