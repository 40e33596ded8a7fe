"""Two Ray nodes: what is checked and forwarded before verl starts, and how a dead process is recognised."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.plugins.verl.conftest import Machine, printed_by
from tests.plugins.verl.test_two_nodes import until

DRIVER = Path(__file__).with_name("nodes_driver.py")


@contextmanager
def cluster(machine: Machine, **environment: str) -> Iterator[str]:
    """Two nodes without GPUs; ``environment`` is the second's. Yields RAY_ADDRESS."""
    head, other = "127.0.0.2", "127.0.0.3"
    with socket.socket() as probe:
        probe.bind((head, 0))
        port = probe.getsockname()[1]
    options = ["--num-cpus=2", f"--object-store-memory={100 << 20}", "--block", "--disable-usage-stats"]
    ray = [str(Path(sys.executable).with_name("ray")), "start"]
    first = ["--head", f"--port={port}", f"--node-ip-address={head}", "--include-dashboard=false"]
    second = [
        f"--address={head}:{port}",
        f"--node-ip-address={other}",
        f"--resources={json.dumps({'other': 1})}",
    ]
    nodes = [machine.start(*ray, *first, *options)]
    try:
        until(lambda: "Ray runtime started" in printed_by(nodes[0]), PATIENCE)
        nodes.append(machine.start(*ray, *second, *options, **environment))
        until(lambda: "Ray runtime started" in printed_by(nodes[1]), PATIENCE)
        yield f"{head}:{port}"
    finally:
        for node in nodes:
            node.send_signal(signal.SIGTERM)
        for node in nodes:
            node.wait(PATIENCE)


@pytest.mark.slow  # a cluster of two nodes: make verify-verl
def test_nodes_are_checked_variables_forwarded_and_dead_processes_recognised(
    machine: Machine, tmp_path: Path
) -> None:
    newer = tmp_path / "newer" / "verl-0.10.0.dist-info"
    newer.mkdir(parents=True)
    (newer / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.10.0\n")
    folder = tmp_path / "run"
    folder.mkdir()
    # Both nodes in one test, because each cluster takes half a minute: the other node has another verl.
    path = ":".join([str(newer.parent), *filter(None, [machine.environment.get("PYTHONPATH")])])
    with cluster(machine, PYTHONPATH=path) as address:
        printed = machine.run(
            sys.executable, str(DRIVER), str(folder), seconds=4 * PATIENCE, RAY_ADDRESS=address
        )
    assert "VARIABLE HF_TOKEN of the user" in printed and "VARIABLE DATABASE_URL db" in printed
    assert "VARIABLE UNNAMED not set" in printed
    assert re.search(
        r"^REFUSED backbone verl: node \S+ \(127\.0\.0\.3\) has verl 0\.10\.0, but the node of `ajet run` has 0\.9\.1: install",
        printed,
        re.M,
    ), printed
    assert re.search(
        r"^FAILED True ActorDiedError: The actor died unexpectedly .*class_name: Worker", printed, re.M
    )
    assert "LEFT []" in printed
