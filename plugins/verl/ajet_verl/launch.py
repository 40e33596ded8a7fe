"""Runs a job with verl: starts Ray, the recorder and verl, forwards events, and returns the result."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import threading
import time
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ajet import AjetError, ConfigError, Task, model_source
from ajet.interfaces.backbone import MachineFailed, RunResult
from ajet.job.models import check_vocabulary
from ajet.learning.alarms import Alarm
from ajet.learning.collapse import train_again
from ajet.learning.loop import NotFinite
from ajet.learning.rollouts import ValidationFailed
from ajet.rollout.checkpoints import checkpoints, newest, step_of
from ajet.rollout.episode import Episode, Plan
from ajet.rollout.journal import episode_from_json
from ajet.runs.alarms import alarms_of, said_of
from ajet.runs.callbacks import Listeners
from ajet.runs.run_dir import held, keep_tokenizer, new_run_dir
from ajet.runs.train import recorded_validation, refuse_ruined
from ajet_verl import lora
from ajet_verl.alignment import RunPaths, compose
from ajet_verl.cluster import NAMESPACE, check_nodes, cluster, on_this_node, ray_address, wait_for_gpus
from ajet_verl.failures import cause_of, is_machine_failure, why
from ajet_verl.lengths import architecture
from ajet_verl.recorder import Event, Recorder, dumps, to_text
from ajet_verl.spec import JobSpec
from ajet_verl.survivors import end_servers

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ajet import Job
    from ajet_verl.settings import VerlSettings

STAGED = ".verl"
"""Folder among the checkpoints in which verl writes one until it is complete."""
ERROR = "error.txt"
"""File of the run folder with the traceback of a failed run."""
CLOSING = 30.0
"""Maximum seconds for the recorder to close its files, and for verl's trainer to end."""
QUEUE = "TransferQueueController"
"""Name of the actor of verl's queue, of which a cluster can have only one."""
POLL_SECONDS = 0.2


def launch(job: Job, settings: VerlSettings) -> RunResult:
    """Run a prepared job to its end, in a new run folder or in the one to resume. Raises AjetError if the run fails."""
    source = model_source(job.model, job.config.run.seed, job.progress)
    model = lora.base(source)
    # Errors are raised before the run folder is created.
    shape = architecture(model, settings.trusts_model)
    paths = RunPaths(model, adapters=lora.folder(source, job), model_shape=shape)
    config = compose(job, settings, paths)
    reference = _reference(job, model, settings.trusts_model)
    paths = replace(paths, ajet={"spec": to_text(JobSpec.of(job, dumps)), "reference": reference})
    run_dir = job.resume or new_run_dir(job)
    with held(run_dir, job.progress.say):
        return _launch_in(run_dir, job, settings, paths, config)


def _launch_in(
    run_dir: Path, job: Job, settings: VerlSettings, paths: RunPaths, config: DictConfig
) -> RunResult:
    if job.resume:
        job.progress.started(run_dir)
    keep_tokenizer(run_dir, _tokenizer(paths.model, settings.trusts_model), job.progress)
    address = os.environ.get("RAY_ADDRESS") or ray_address(job)
    with cluster(config, address, settings.environment) as ray:
        wait_for_gpus(ray, config, job, joined=bool(address))
        check_nodes(ray, run_dir, job.progress)
        run = _VerlRun(ray, job, settings, paths, run_dir)
        with run.listeners.run(run.done if job.resume else None):
            try:
                try:
                    run.execute()
                finally:
                    run.close()
            except MachineFailed:
                run.end_trainer()
                raise
            result = run.result()
            refuse_ruined(job, run.ruined(result))
            run.listeners.said = run.collapsed()
            run.listeners.result = result
            return result


class _VerlRun:
    """One run of verl on a cluster, in the process of `ajet run`."""

    def __init__(self, ray: Any, job: Job, settings: VerlSettings, paths: RunPaths, run_dir: Path) -> None:
        self._ray, self._job, self._settings, self._run_dir = ray, job, settings, run_dir
        self.done = step_of(newest(run_dir, job.progress.say))
        """The step of the checkpoint to continue from, 0 without one."""
        self.listeners = Listeners(job, run_dir)
        shutil.rmtree(run_dir / "checkpoints" / STAGED, ignore_errors=True)
        attempt = uuid.uuid4().hex[:8]  # of an earlier one, actors may not have ended yet
        name, self._trainer = f"recorder {run_dir} {attempt}", f"trainer {run_dir} {attempt}"
        self._thread: threading.Thread | None = None
        self._recorder = on_this_node(Recorder, name=name, namespace=NAMESPACE).remote(
            str(run_dir),
            job.tasks,
            job.validation,
            job.config.train.keep_last,
            job.config.train.keep_best,
            self.listeners.wants_episodes,
        )
        if job.resume:
            ray.get(self._recorder.supersede.remote(self.done + 1 if self.done else 0))
            job.progress.say(f"resuming {run_dir} after step {self.done}")
        self._config = compose(
            job,
            settings,
            replace(
                paths,
                run_dir=str(run_dir),
                resume_from=_verl_checkpoint(run_dir, self.done),
                ajet={
                    **paths.ajet,
                    "run_dir": str(run_dir),
                    "recorder": name,
                    "trainer": self._trainer,
                    "runners": settings.runners,
                },
            ),
        )
        self._tasks = {task.id: task for task in job.tasks}
        self._validation_tasks = {task.id: task for task in job.validation}
        self._last_progress = time.monotonic()
        self._failed = ""
        """The error that a process other than verl's trainer has reported."""
        self._alarms = alarms_of(job, run_dir)

    def execute(self) -> None:
        """Run verl until it ends, and forward the events of its processes. Raises AjetError if verl fails, if another
        process reports an error, or if there is no progress for ``backbone.verl.patience`` seconds; MachineFailed if
        resuming may help."""
        failure: list[BaseException] = []

        def verl() -> None:
            try:
                run_verl(self._config)
            except BaseException as error:
                failure.append(error)

        self._job.progress.say("verl takes a minute or more to start: Ray, the model on each rank, vLLM")
        thread = self._thread = threading.Thread(target=verl, name="verl", daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(POLL_SECONDS)
            self._forward_events()
            if time.monotonic() - self._last_progress > self._settings.patience:
                raise MachineFailed(
                    f"backbone verl: no progress for {self._settings.patience:.0f} s (backbone.verl.patience). "
                    f"{self._logs()}",
                    self._run_dir,
                )
        self._forward_events()
        if failure:
            raise self._error(failure[0])

    def _forward_events(self) -> None:
        """Fetch the recorder's events and forward them. Raises MachineFailed if one is an error of another process, and
        AjetError if the recorder is gone."""
        try:
            events = self._ray.get(self._recorder.events.remote(), timeout=60)
        except self._ray.exceptions.RayError as error:  # the recorder, or all of Ray, has ended
            raise self._error(error) from error
        for event in events:
            if event.is_progress:
                self._last_progress = time.monotonic()
            self._forward(event)
        if self._failed:
            raise MachineFailed(f"backbone verl: {self._failed}. {self._logs()}", self._run_dir)

    def _forward(self, event: Event) -> None:
        progress, steps = self._job.progress, self._job.config.train.steps
        if event.kind == "say":
            progress.say(event.text)
        elif event.kind == "fail":
            self._failed = self._failed or event.text
        elif event.kind == "alive":
            pass
        elif event.kind == "episodes":
            progress.episodes(event.text, event.done, event.total)
        elif event.kind == "train":
            raised = self._alarms.step(event.step, event.metrics)
            progress.step(event.step, steps, event.metrics)
            self.listeners.step_end(event.step, event.metrics)
            self._raise(raised)
        elif event.kind == "episode":
            line = json.loads(event.text)
            self.listeners.episode_end(self._episode(line), line["phase"], event.step)
        elif event.kind == "checkpoint":
            self.listeners.checkpoint_saved(event.step, Path(event.text))
        else:
            prefix = "validation/" if event.kind == "validation" else f"validation/{event.kind}_"
            self.listeners.log(event.step, {f"{prefix}{k}": v for k, v in event.metrics.items()})
            if event.kind == "validation":
                self._raise(self._alarms.validation(event.step, event.metrics))

    def _raise(self, raised: Sequence[Alarm]) -> None:
        """Tell of alarms. Raises StoppedByAlarm if one of them is to end the run."""
        for alarm in raised:
            self._job.progress.say(f"warning: {alarm.line}")
        self._alarms.stop(raised)

    def _episode(self, line: Mapping[str, Any]) -> Episode:
        """The episode of a line of the journal."""
        tasks = self._tasks if line["phase"] == "train" else self._validation_tasks
        task = tasks.get(line["task"]) or Task(line["task"])  # a resumed run may have other tasks
        return episode_from_json(line, Plan(line["id"], line["id"], task, line["member"], 0))

    def _error(self, error: BaseException) -> AjetError:
        """What ended the run, in one line; writes the whole traceback to the file `ERROR`."""
        full = "".join(traceback.format_exception(error))
        (self._run_dir / ERROR).write_text(full, encoding="utf-8")
        message = f"backbone verl: {why(error)}. The traceback is in {self._run_dir / ERROR}. {self._logs()}"
        if is_machine_failure(error):
            return MachineFailed(message, self._run_dir)
        if cause_of(error, FloatingPointError):
            return NotFinite(f"{message} {train_again(self._newest(), self._job.config.train.learning_rate)}")
        return ValidationFailed(message) if cause_of(error, ValidationFailed) else AjetError(message)

    def _logs(self) -> str:
        session = self._ray._private.worker._global_node.get_session_dir_path()
        return f"The logs of Ray's processes are in {session}/logs."

    def close(self) -> None:
        """Remove an incomplete checkpoint, and end the servers and the recorder."""
        shutil.rmtree(self._run_dir / "checkpoints" / STAGED, ignore_errors=True)

        def close_recorder() -> None:
            self._ray.get(self._recorder.close.remote(), timeout=CLOSING)

        # Servers are left if the run was interrupted, as by Ctrl-C.
        for end in (end_servers, close_recorder):
            with contextlib.suppress(Exception):  # the cluster itself may have failed
                end()

    def end_trainer(self) -> None:
        """End verl's trainer, and with it all actors that it has created. Waits for them, because a restart needs the name of
        their queue and their GPUs."""
        with contextlib.suppress(Exception):  # it has ended, or the cluster has
            self._ray.kill(self._ray.get_actor(self._trainer, namespace=NAMESPACE))
        if self._thread is not None:
            self._thread.join(CLOSING)
        deadline = time.monotonic() + CLOSING
        with contextlib.suppress(Exception):
            while time.monotonic() < deadline and self._queue_exists():
                time.sleep(POLL_SECONDS)

    def _queue_exists(self) -> bool:
        return QUEUE in {actor["name"] for actor in self._ray.util.list_named_actors(all_namespaces=True)}

    def ruined(self, result: RunResult) -> str:
        """See `CollapseCheck.ruined`."""
        return self._alarms.collapse.ruined(result.after, self._run_dir, self._job.config.train.learning_rate)

    def collapsed(self) -> str:
        """See `CollapseCheck.found`; else the alarms."""
        return self._alarms.collapse.found() or said_of(self._alarms.found.values())

    def _newest(self) -> Path | None:
        return next(reversed(checkpoints(self._run_dir)), None)

    def result(self) -> RunResult:
        """How the run ended, from the run folder."""
        return RunResult(
            run_dir=self._run_dir,
            steps=self._job.config.train.steps,
            checkpoint=self._newest(),
            before=recorded_validation(self._run_dir, first=True),
            after=recorded_validation(self._run_dir, first=False),
        )


def run_verl(config: DictConfig) -> None:
    """Call verl's entry point with our task runner, and block until the job has ended. Raises verl's exceptions."""
    from verl.trainer.main_ppo import run_ppo
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config
    from verl.utils.device import auto_set_device

    from ajet_verl.trainer import TaskRunner

    auto_set_device(config)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that the configuration is valid
        validate_config(config, need_reference_policy(config), need_critic(config))
    run_ppo(config, on_this_node(TaskRunner, name=config.ajet.trainer, namespace=NAMESPACE))


def _reference(job: Job, model: str, trusted: bool) -> str | None:
    """The folder or Hugging Face id of `train.reference`, None without one. Raises AjetError if the workers could not use it."""
    name = job.config.train.reference
    if name is None:
        return None
    reference = model_source(name, job.config.run.seed, job.progress)
    its = _tokenizer(reference, trusted, "train.reference")
    check_vocabulary(name, its.get_vocab(), _tokenizer(model, trusted).get_vocab())
    return reference


def _tokenizer(model: str, trusted: bool, key: str = "model") -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model, trust_remote_code=trusted)
    except (OSError, ValueError) as error:
        line = str(error).strip().splitlines()[0].rstrip(".")
        raise ConfigError(f"{key}: {model}: {line}. Check the path or the Hub id.") from error


def _verl_checkpoint(run_dir: Path, step: int) -> str | None:
    """verl's folder in the checkpoint of a step; None for step 0."""
    return str(run_dir / "checkpoints" / f"step_{step:06d}" / f"global_step_{step}") if step else None
