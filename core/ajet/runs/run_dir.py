"""A run folder: the resolved job, the versions that took part, and the one process that writes into it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from ajet.interfaces.progress import Progress
from ajet.job.job import Job
from ajet.job.objects import as_records, is_object
from ajet.job.prepare import resolved
from ajet.rollout.checkpoints import CHECKPOINT_STATE
from ajet.types import AjetError, ConfigError, Task
from ajet.utils.files import write_whole, writing
from ajet.utils.keys import leaves
from ajet.utils.process_group import process_begun

TOKENIZER = "tokenizer"
"""The folder in a run folder that holds the model's tokenizer."""
LOCK = "run.lock"
"""Locked by the process that writes into the run folder. The system releases it however that process ends."""
RUNNING = "running.json"
"""Names the process that writes here. Deleted when the run ends or fails normally; if it is still there, the process was
killed or crashed."""
SETTINGS = "settings.json"
READ = "tasks read"
"""What describes the tasks, in `SETTINGS`."""
"""The resolved job with which the run began or last went on."""
TASKS = "tasks.json"
"""Ids of the training tasks of a deterministic run, in their order, each with a hash of its content."""

MOST_NAMED = 8
"""Changed settings that a message names."""


def new_run_dir(job: Job, what: str = "") -> Path:
    """A new run folder with the resolved job and the versions in it; says where it is. Its name has the time, the run's name,
    and ``what`` is done if nothing is trained."""
    parts = (time.strftime("%Y%m%d-%H%M%S"), as_folder(job.config.run.name or ""), what)
    stem = "-".join(filter(None, parts))
    root = Path(job.config.run.dir).expanduser().resolve()
    with writing(root):
        root.mkdir(parents=True, exist_ok=True)
        for n in range(1000):
            run_dir = root / (f"{stem}-{n}" if n else stem)
            try:
                run_dir.mkdir()
            except FileExistsError:
                continue
            keep_job(run_dir, job, trains=not what)
            job.progress.started(run_dir)
            return run_dir
    raise ConfigError("run.dir", f"{root} holds too many runs of this second.")


def as_folder(name: str) -> str:
    """A name as part of a folder's."""
    return re.sub(r"[^\w.-]+", "-", name).strip("-.")[-60:]


def keep_job(run_dir: Path, job: Job, *, trains: bool = True) -> None:
    """Write the resolved job and the versions that take part into a run folder. If nothing ``trains``, as in a forecast, the job's
    backbone is ``debug`` there."""
    data = resolved(job)
    if not trains:
        data["backbone"]["name"] = "debug"
    _keep_resolved(run_dir, job, data)
    (run_dir / "versions.json").write_text(json.dumps(versions(job), indent=2))


def _keep_resolved(run_dir: Path, job: Job, data: dict[str, Any]) -> None:
    for name, tasks in (("reader", job.tasks), ("validation", job.validation)):
        _keep_given(run_dir, data["task"], name, tasks)
    written = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    write_whole(run_dir / "job.yaml", written)
    write_whole(run_dir / SETTINGS, json.dumps({**data, READ: _read(job)}))


def tell_changes(run_dir: Path, job: Job, say: Callable[[str], None]) -> None:
    """Say which settings of a run that goes on are others than before, also after its job.yaml was changed or cut, and keep them: the
    next ``--resume`` and lists of runs find the same job."""
    file, now = run_dir / SETTINGS, {**resolved(job), READ: _read(job)}
    if not file.exists():  # of an earlier release
        return
    try:
        # An earlier release did not note the tasks.
        before = {READ: now[READ], **json.loads(file.read_bytes())}
        new, old = dict(leaves(now)), dict(leaves(before))
    except (ValueError, TypeError, AttributeError):
        new = old = {}
    keys = [key for key in {**old, **new} if new.get(key) != old.get(key)]
    changed = [f"{key} {json.dumps(new.get(key))} (was {json.dumps(old.get(key))})" for key in keys]
    if changed:
        more = f", and {len(changed) - MOST_NAMED} more" if len(changed) > MOST_NAMED else ""
        bits = ". A deterministic run repeats only under the same settings" * job.config.run.deterministic
        say(f"{run_dir} goes on with other settings: {', '.join(changed[:MOST_NAMED])}{more}{bits}")
        # What may be refused later must not stay: other tasks of a deterministic run, another job of a comparison of models.
        refused = job.config.run.deterministic and any(key.startswith(READ) for key in keys)
        if job.backbone.capabilities.trains and not refused:
            _keep_resolved(run_dir, job, resolved(job))
        else:
            write_whole(file, json.dumps(now))


def _read(job: Job) -> dict[str, str]:
    """The tasks that a job has read: their number, and a hash of their contents and order."""
    return {
        name: described(tasks) for name, tasks in (("training", job.tasks), ("validation", job.validation))
    }


def described(tasks: Sequence[Task]) -> str:
    """How many tasks these are, and a hash of their contents and order."""
    digest = hashlib.sha256()
    for task in tasks:
        digest.update(f"{task.id} {_digest(task)}\n".encode(errors="surrogatepass"))
    return f"{len(tasks)} tasks, {digest.hexdigest()[:8]}"


def _keep_given(run_dir: Path, section: dict[str, Any], name: str, tasks: Sequence[Task]) -> None:
    """Write tasks that a script gave as objects into the run folder, and let its job read them there, so that resuming
    does not need them again. Tasks that JSON cannot hold stay as they are."""
    spec = section.get(name)
    if not (spec and is_object(spec["type"])) or not (records := as_records(tasks)):
        return
    file = run_dir / f"given_{name}.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    section[name] = {"type": "jsonl", "path": str(file)}


@contextmanager
def held(run_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """A block in which no other process writes into a run folder; blocks of one process may be nested. ``say`` is told
    if the process before it crashed. Raises AjetError, at once, while another process is in such a block."""
    from filelock import FileLock, Timeout

    with writing(run_dir / LOCK):
        lock = FileLock(run_dir / LOCK, is_singleton=True, thread_local=False)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise AjetError(
                f"{run_dir}: {_holder(run_dir)} is running it, and two processes would record every step twice. Wait until "
                "that one has ended, or end it, then resume."
            ) from None
    try:
        if lock.lock_counter > 1:
            yield
            return
        if (run_dir / RUNNING).exists():
            say(
                f"{run_dir}: {_holder(run_dir)} did not shut down: it was killed, crashed, or called os._exit. "
                "A workflow that can end its process is safer as a program of its own (workflow: cmd:...)."
            )
        with writing(run_dir / RUNNING):
            who = {
                "pid": os.getpid(),
                "begun": process_begun(os.getpid()),
                "host": socket.gethostname(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S"),
            }
            (run_dir / RUNNING).write_text(json.dumps(who))
        try:
            yield
        finally:
            (run_dir / RUNNING).unlink(missing_ok=True)
    finally:
        lock.release()


def _holder(run_dir: Path) -> str:
    """The process that holds the run folder, or held it last."""
    try:
        who = json.loads((run_dir / RUNNING).read_text())
        return f"process {who['pid']} on {who['host']} (since {who['since']})"
    except (OSError, ValueError, LookupError, TypeError):
        return "another process"


def keep_same_tasks(run_dir: Path, job: Job) -> None:
    """See to it that a deterministic run goes on with the tasks that it began with, as its batches depend on them.
    Raises ConfigError that names the first other one."""
    if not job.config.run.deterministic:
        return
    file = run_dir / TASKS
    now: list[Any] = [[task.id, _digest(task)] for task in job.tasks]
    if not file.exists():
        write_whole(file, json.dumps(now))
        return
    try:
        began = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(began, list):
            raise ValueError("it is not a list")
    except ValueError as error:
        raise AjetError(
            f"{file}: cannot be read ({error}), so it is unknown which tasks this deterministic run began with. Bring the file "
            "back from a copy, or resume with --no-deterministic."
        ) from None
    if not all(isinstance(task, list) for task in began):  # runs of earlier releases kept only ids
        now = [name for name, _ in now]
    if began == now:
        return
    other = next((i for i, (one, two) in enumerate(zip(began, now, strict=False)) if one != two), None)
    index = min(len(began), len(now)) if other is None else other
    was, then = (_name_at(tasks, index) for tasks in (began, now))
    change = f"was {was} and is {then}" if was != then else f"is still {was}, but has another content"
    raise ConfigError(
        "task.reader",
        f"this deterministic run began with {len(began)} tasks, and now there are {len(now)}: number {index + 1} "
        f"{change}. Restore the tasks, or resume with --no-deterministic.",
    )


def _digest(task: Task) -> str:
    """A hash of all that a task holds."""
    content = json.dumps([task.query, task.messages, task.metadata], sort_keys=True, default=str)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


def _name_at(tasks: Sequence[Any], index: int) -> str:
    if index >= len(tasks):
        return "none"
    return repr(tasks[index][0] if isinstance(tasks[index], list) else tasks[index])


def keep_tokenizer(run_dir: Path, tokenizer: Any, progress: Progress) -> None:
    """Save a model's tokenizer in the run folder, so that tokens can be read without the model."""
    if (run_dir / TOKENIZER).exists():
        return
    try:
        tokenizer.save_pretrained(run_dir / TOKENIZER)
    except Exception as error:
        progress.say(f"the tokenizer cannot be saved, so `ajet show` will show ids only: {error}")


def checkpoint_step(model: str) -> int | None:
    """The training step after which a checkpoint was written; None for any other model. ``model`` may also be the
    folder of one of the checkpoint's adapters."""
    folder = Path(model).expanduser()
    for checkpoint in (folder, folder.parent.parent):
        try:
            state = json.loads((checkpoint / CHECKPOINT_STATE).read_text())
            return int(state["step"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def versions(job: Job) -> Mapping[str, str]:
    """Python and every distribution that took part."""
    names = {i.distribution for i in job.plugins.classes.values()} | {
        "torch",
        "transformers",
        "renderers",
        "numpy",
        "openai",
        "httpx2",
        "httpx",
    }
    told = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "argv": " ".join(sys.argv),
    }
    for name in sorted(names):
        try:
            told[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return told
