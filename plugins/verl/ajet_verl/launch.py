"""From a job to a run of verl and back: Ray, the recorder, verl's entry, what it says, its end."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet.interfaces.backbone import RunResult
from ajet.interfaces.logger import Logger
from ajet.job.models import model_source
from ajet.job.spec import JobSpec
from ajet.rollout.checkpoints import checkpoints, newest, step_of
from ajet.runs.callbacks import Listeners
from ajet.runs.run_dir import held, keep_tokenizer, new_run_dir
from ajet.runs.train import recorded_validation
from ajet.types import AjetError, ConfigError
from ajet_verl.alignment import Place, compose
from ajet_verl.recorder import NAMESPACE, Event, Recorder
from ajet_verl.service import ray_of
from ajet_verl.spec import to_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet.job.prepare import Job
    from ajet_verl.settings import VerlSettings

STAGED = ".verl"
"""Folder among the checkpoints in which verl writes one before it is complete."""
ERROR = "error.txt"
CLOSING = 30.0
POLL_SECONDS = 0.2
NODES_SECONDS = 300.0
"""How long the GPUs that a job asks for may take to join the cluster."""
OF_NEW_CLUSTERS = ("num_cpus", "num_gpus", "resources", "object_store_memory", "include_dashboard")
"""Arguments of `ray.init` that mean nothing where a cluster is joined."""


def launch(job: Job, settings: VerlSettings) -> RunResult:
    """Run a prepared job to its end, in a new run folder or in the one to resume. Raises AjetError."""
    model = model_source(job.model, job.config.run.seed, job.progress)
    config = compose(
        job, settings, Place(model)
    )  # what is wrong with it is said before there is a run folder
    run_dir = job.resume or new_run_dir(job)
    with held(run_dir, job.progress.say):
        return _launch_in(run_dir, job, settings, model, config)


def _launch_in(run_dir: Path, job: Job, settings: VerlSettings, model: str, config: DictConfig) -> RunResult:
    if job.resume:
        job.progress.started(run_dir)
    keep_tokenizer(run_dir, _tokenizer(model), job.progress)
    joined = os.environ.get("RAY_ADDRESS") or ray_of(job)
    with _cluster(config, joined) as ray:
        _wait_for_gpus(ray, config, job, joined=bool(joined))
        run = _Run(ray, job, settings, model, run_dir)
        try:
            run.to_its_end()
        finally:
            run.close()
    return run.result()


class _Run:
    """One run of verl on a cluster, seen from the driver."""

    def __init__(self, ray: Any, job: Job, settings: VerlSettings, model: str, run_dir: Path) -> None:
        self._ray, self._job, self._settings, self._run_dir = ray, job, settings, run_dir
        self._done = step_of(newest(run_dir, job.progress.say))
        shutil.rmtree(run_dir / "checkpoints" / STAGED, ignore_errors=True)
        name = f"recorder {run_dir}"
        self._recorder = _on_this_node(ray, Recorder, name).remote(
            str(run_dir),
            job.tasks,
            job.validation,
            job.config.train.keep_last,
            job.config.train.keep_best,
        )
        if job.resume:
            ray.get(self._recorder.supersede.remote(self._done + 1 if self._done else 0))
            job.progress.say(f"resuming {run_dir} after step {self._done}")
        self._config = compose(
            job,
            settings,
            Place(
                model,
                str(run_dir),
                _verls_folder(run_dir, self._done),
                {
                    "spec": to_text(JobSpec.of(job)),
                    "run_dir": str(run_dir),
                    "recorder": name,
                    "runners": settings.runners,
                },
            ),
        )
        self._listeners = Listeners(_with_tensorboard(job), run_dir)
        self._heard = time.monotonic()
        self._seconds = 0.0

    def to_its_end(self) -> None:
        """Let verl run, and tell what it tells. Raises AjetError if it fails or nothing happens for too long."""
        failure: list[BaseException] = []

        def verl() -> None:
            try:
                run_verl(self._ray, self._config)
            except BaseException as error:
                failure.append(error)

        self._job.progress.say("verl takes a minute or more to start: Ray, the model on each rank, vLLM")
        thread = threading.Thread(target=verl, name="verl", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            self._tell()
            if time.monotonic() - self._heard > self._settings.patience:
                raise AjetError(
                    f"backbone verl: nothing has happened for {self._settings.patience:.0f} s (backbone.verl.patience). "
                    f"{self._logs()}"
                )
        self._tell()
        if failure:
            raise self._explained(failure[0])

    def _tell(self) -> None:
        """Pass on what has happened."""
        try:
            events = self._ray.get(self._recorder.events.remote(), timeout=60)
        except self._ray.exceptions.RayError as error:  # the recorder, or all of Ray, is gone
            raise self._explained(error) from error
        for event in events:
            self._heard = time.monotonic()
            self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        progress, steps = self._job.progress, self._job.config.train.steps
        if event.kind == "say":
            progress.say(event.text)
        elif event.kind == "episodes":
            progress.episodes(event.text, event.done, event.total)
        elif event.kind == "train":
            self._seconds += event.metrics.get("seconds_rollout", 0.0) + event.metrics.get(
                "seconds_update", 0.0
            )
            progress.step(event.step, steps, event.metrics)
            self._listeners.step_end(event.step, event.metrics)
        else:
            prefix = "validation/" if event.kind == "validation" else f"validation/{event.kind}_"
            self._listeners.log(event.step, {f"{prefix}{k}": v for k, v in event.metrics.items()})

    def _explained(self, error: BaseException) -> AjetError:
        """What ended the run, in one line; the whole of it goes to a file."""
        text = "".join(traceback.format_exception(error))
        (self._run_dir / ERROR).write_text(text, encoding="utf-8")
        cause = getattr(error, "cause", None) or error
        line = (str(cause).strip().splitlines() or [""])[0]
        return AjetError(
            f"backbone verl: {type(cause).__name__}: {line}. More in {self._run_dir / ERROR}. {self._logs()}"
        )

    def _logs(self) -> str:
        session = self._ray._private.worker._global_node.get_session_dir_path()
        return f"The logs of Ray's processes are in {session}/logs."

    def close(self) -> None:
        """Close what the driver holds, and what it waits for."""
        self._listeners.close()
        shutil.rmtree(self._run_dir / "checkpoints" / STAGED, ignore_errors=True)
        with contextlib.suppress(Exception):  # the cluster may be what has failed
            from ajet_verl.task_runner import end_servers

            end_servers()  # there are some if the run was broken off, as by Ctrl-C
            self._ray.get(self._recorder.close.remote(), timeout=CLOSING)

    def result(self) -> RunResult:
        """How the run ended, as the run folder tells."""
        return RunResult(
            self._run_dir,
            self._job.config.train.steps,
            next(reversed(checkpoints(self._run_dir)), None),
            recorded_validation(self._run_dir, first=True),
            recorded_validation(self._run_dir, first=False),
            self._seconds,
        )


def run_verl(ray: Any, config: DictConfig) -> None:
    """Call verl's entry with our task runner; blocks until the job has ended. Raises what it raised."""
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from ajet_verl.task_runner import TaskRunner

    auto_set_device(config)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that all is well
        validate_config(config, need_reference_policy(config), need_critic(config))
    run_ppo(config, _on_this_node(ray, TaskRunner))


@contextmanager
def _cluster(config: DictConfig, joined: str | None) -> Iterator[Any]:
    """Ray, connected to the cluster at an address, else to one that begins and ends here."""
    import ray
    from omegaconf import OmegaConf
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env

    environment = get_ppo_ray_runtime_env(config)
    environment["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    given = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert isinstance(given, dict)
    runtime_env = environment | {k: v for k, v in given.pop("runtime_env").items() if v is not None}
    arguments = {"include_dashboard": False, "log_to_driver": False, "namespace": NAMESPACE, **given}
    if joined:
        arguments = {k: v for k, v in arguments.items() if k not in OF_NEW_CLUSTERS} | {"address": joined}
    else:  # without an address Ray would also join one that it finds on this machine
        arguments.setdefault("address", "local")
    try:
        ray.init(runtime_env=runtime_env, **arguments)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise AjetError(
            f"backbone verl: Ray: {error}. Check RAY_ADDRESS, or `ray status` on that machine."
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _wait_for_gpus(ray: Any, config: DictConfig, job: Job, *, joined: bool) -> None:
    """Give the other nodes time to join. Raises AjetError if the GPUs that the job asks for do not come."""
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    wanted = trainer.nnodes * trainer.n_gpus_per_node
    if trainer.v1.trainer_mode == "separate_async":
        wanted += rollout.nnodes * rollout.n_gpus_per_node
    deadline, told = time.monotonic() + NODES_SECONDS, False
    while (there := int(ray.cluster_resources().get("GPU", 0))) < wanted:
        if not joined or time.monotonic() > deadline:
            raise AjetError(
                f"backbone verl: the job asks for {wanted} GPUs, and Ray has {there}. Set backbone.verl.trainer.nnodes and "
                "n_gpus_per_node, or start Ray on the other nodes (docs/verl.md)."
            )
        if not told:
            job.progress.say(f"waiting for {wanted} GPUs; Ray has {there}")
            told = True
        time.sleep(1)


def _on_this_node(ray: Any, cls: type[Any], name: str | None = None) -> Any:
    """An actor class whose actor runs on the node of this process, where the run folder is; it takes no core."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    named = {"name": name, "namespace": NAMESPACE} if name else {}
    return ray.remote(num_cpus=0, scheduling_strategy=here, **named)(cls)


def _with_tensorboard(job: Job) -> Job:
    """The job with TensorBoard among its loggers, where the plugin that brings it is installed."""
    found = job.plugins.classes.get(("logger", "tensorboard"))
    if found is None or any(logger.name == found.name for logger in job.loggers):
        return job
    logger = found.cls()
    assert isinstance(logger, Logger)
    return replace(job, loggers=(*job.loggers, logger))


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0].rstrip(".")
        raise ConfigError(f"model: {model}: {line}. Check the path or the Hub id.") from error


def _verls_folder(run_dir: Path, step: int) -> str | None:
    """What verl wrote of a checkpoint."""
    return str(run_dir / "checkpoints" / f"step_{step:06d}" / f"global_step_{step}") if step else None
