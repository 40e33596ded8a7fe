"""The workflow ``command``: a program of its own for each episode. ``cmd:python agent.py`` is its short form."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ByteSize, Field, field_validator, model_validator

from ajet import Task, WorkflowOutput
from ajet.capture.session import current_session
from ajet.interfaces.base import Count, PathOrName, Seconds
from ajet.interfaces.prompts import Prompts, current_prompts
from ajet.interfaces.service import looks_secret, own_python
from ajet.interfaces.workflow import Tuner, WorkflowFailed, WorkflowPlugin
from ajet.utils.threads import to_its_end
from ajet_commands.bounds import Bounds
from ajet_commands.folders import below, collect, copy_folder, remove_folder, write_files
from ajet_commands.placeholders import check_placeholders, field_of, fill, has_placeholder, values_of
from ajet_commands.privileges import others_can_read, unused_id
from ajet_commands.process import MOST_ANSWER, Ended, run_process
from ajet_commands.sandbox import IN_SANDBOX, check_sandbox, inside, sandboxed

MOST_IN_ENVIRONMENT = 96 << 10
"""Larger tasks are passed only on stdin: Linux limits one variable to 128 KiB."""
FRESH, SHARED = "fresh", "shared"
_FIELDS = ("reward", "response", "is_success", "metrics", "metadata")
_HARMLESS = (
    *("PATH", "LANG", "LANGUAGE", "LC_*", "TERM", "COLORTERM", "TZ", "PYTHONHASHSEED", "PYTHONUNBUFFERED"),
    *("OMP_NUM_THREADS", "SOURCE_DATE_EPOCH"),
)
"""What a program in a sandbox inherits: no list of names that look like secrets is complete."""
SANDBOX_BYTES = 4 << 30
"""Bytes of memory, and of disk, that a program in a sandbox may have, if the job does not say."""
_XDG = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state", "CACHE": ".cache"}


class CommandWorkflow(WorkflowPlugin):
    """Runs a command for each episode, in a folder and a home of its own.

    Its program finds the model in OPENAI_BASE_URL, OPENAI_API_KEY and similar variables. Placeholders in the command and in the
    values of `environment` stand for the episode's: {query}, {id}, {metadata.NAME}, {base_url}, {api_key}, {keyed_url} (the address
    with the key in its path), {workspace}, {home}, {workdir}. When the episode ends, its processes are killed and its folders
    removed. No shell is involved.
    """

    name = "command"

    command: tuple[str, ...] = Field(
        description="Program and arguments: a list, or a text that is split as a shell would."
    )
    stdin: Literal["empty", "query", "task"] = Field(
        "empty",
        description="What the program reads from stdin; task: the task as JSON, which is then in AJET_TASK, too.",
    )
    workdir: Path = Field(
        description="Folder of {workdir}, of a program named by a relative path, and of all episodes if workspace is shared; "
        "default: the folder of the job file."
    )
    workspace: PathOrName = Field(
        FRESH,
        description="Folder in which the program runs: fresh, a new one for each episode; a path, for each a copy of that folder "
        "(with placeholders, such as repos/{metadata.repo}); or shared, workdir itself.",
    )
    files: str | None = Field(
        None,
        description="Field of the task's metadata with files to write into the workspace: texts by relative path.",
    )
    home: PathOrName = Field(
        FRESH,
        description="HOME of the program, with XDG's folders and TMPDIR: fresh, an empty one for each episode; a path, for each a "
        "copy of that folder; or shared, your own.",
    )
    environment: dict[str, str] = Field({}, description="Further environment variables; no secrets.")
    inherit: tuple[str, ...] | None = Field(
        None,
        description="Environment variables that it gets of yours, as names or patterns (LC_*); default: all but those whose "
        "names look like secrets, and in a sandbox PATH, LANG, LC_*, TERM, TZ and the like.",
    )
    calls: Count | None = Field(
        None, ge=1, description="Maximum LLM calls of an episode; the next one ends it as workflow:calls."
    )
    tokens: Count | None = Field(
        None,
        ge=1,
        description="Tokens sampled in an episode (500k), after which the next call ends it as workflow:tokens.",
    )
    timeout: Seconds | None = Field(
        None,
        description="Maximum time of the program, then it ends as workflow:timeout; must be below rollout.timeout.",
    )
    memory: ByteSize | None = Field(
        None,
        gt=0,
        description="Maximum memory of all its processes, such as 8GiB, then it ends as workflow:memory; default: 4GiB in a sandbox.",
    )
    disk: ByteSize | None = Field(
        None,
        gt=0,
        description="Maximum size of workspace and home, then it ends as workflow:disk; default: 4GiB in a sandbox.",
    )
    answer: str = Field(
        "stdout",
        description="The response: stdout, its last line (a JSON object that the program itself writes may be a whole output); or the "
        "text of a file in the workspace.",
    )
    collect: tuple[str, ...] = Field(
        (), description="Patterns of files in the workspace that the judge gets as output.files."
    )
    failed: Literal["drop", "judge"] = Field(
        "drop",
        description="An episode whose program failed or reached a limit: drop, it fails; judge, it is judged and trained.",
    )
    sandbox: Literal["none", "bubblewrap"] = Field(
        "none",
        description="bubblewrap: the program sees its own folders and read-only its installation and the system's, no other "
        "processes, and no network but the model.",
    )
    read: tuple[Path, ...] = Field(
        (), description="Further files and folders that it may read in the sandbox."
    )

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, command: Any) -> Any:
        if isinstance(command, str):
            try:
                command = shlex.split(command)
            except ValueError as error:
                raise ValueError(f"{error}; quote arguments as in a shell") from None
        if isinstance(command, list | tuple) and not command:
            raise ValueError("name a program, as in cmd:python agent.py")
        return command

    @field_validator("environment", mode="before")
    @classmethod
    def _numbers_as_text(cls, given: Any) -> Any:
        def text(value: Any) -> Any:
            return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value

        return {name: text(value) for name, value in given.items()} if isinstance(given, dict) else given

    @field_validator("command", "environment")
    @classmethod
    def _no_misspelt_placeholder(cls, value: Any) -> Any:
        for text in value.values() if isinstance(value, dict) else value:
            check_placeholders(text)
        return value

    @model_validator(mode="after")
    def _can_run(self) -> Self:
        if not hasattr(os, "killpg"):
            raise ValueError("commands need process groups, which only POSIX systems have")
        if not self.workdir.is_dir():
            raise ValueError(f"{self.workdir} is not a directory")
        if self._program() is None:
            named = self.command[0]
            file = os.path.join(self.workdir, named)
            remedy = f"chmod +x {shlex.quote(file)}" if os.sep in named else f"name it ./{named}"
            raise ValueError(
                f"{named!r} is not a program that can be run from {self.workdir}"
                + (f": {remedy}" if os.path.isfile(file) else "")
            )
        for what in ("workspace", "home"):
            folder = getattr(self, what)
            if (
                folder not in (FRESH, SHARED)
                and not has_placeholder(folder)
                and not self._path(folder).is_dir()
            ):
                raise ValueError(f"{what}: {self._path(folder)} is not a directory")
        for name, value in self.environment.items():
            if looks_secret(name) and not has_placeholder(value):
                raise ValueError(
                    f"environment: {name} looks like a secret, and a copy of the job is kept with each run. Set it where you start "
                    "ajet, and name it under inherit"
                )
        if self.sandbox != "none":
            check_sandbox()
            if self.workspace == SHARED:
                raise ValueError(
                    "workspace: shared is not possible in a sandbox, which would show the job and its tasks"
                )
            for path in self.read:
                if not path.exists():
                    raise ValueError(f"read: {path} does not exist")
                if unused_id() is not None and not others_can_read(path):
                    raise ValueError(
                        f"read: {path} can be read only by its owner, and what root starts in a sandbox runs as an unused user: "
                        f"chmod -R o+rX {shlex.quote(str(path))}"
                    )
        elif self.read:
            raise ValueError("read has no effect without a sandbox")
        return self

    @property
    def seconds(self) -> float | None:
        """See `WorkflowPlugin.seconds`."""
        return self.timeout

    async def execute(self, task: Task, tuner: Tuner) -> WorkflowOutput:
        """See `WorkflowPlugin.execute`."""
        folder = Path(tempfile.mkdtemp(prefix="ajet-episode-"))
        try:
            return await _Episode(self, task, tuner, folder).run()
        finally:
            await to_its_end(lambda: remove_folder(folder))

    def inherited(self) -> dict[str, str]:
        """The variables of this process that the program gets."""
        names = self.inherit
        if names is None and self.sandbox != "none":
            names = _HARMLESS
        if names is None:
            return {name: value for name, value in os.environ.items() if not looks_secret(name, value)}
        return {
            name: value
            for name, value in os.environ.items()
            if any(fnmatchcase(name, each) for each in names)
        }

    def _path(self, path: str) -> Path:
        return self.workdir / Path(path).expanduser()

    def _program(self) -> str | None:
        """The path of the program; ``python`` is AgentJet's own, unless the job sets PATH."""
        program = self.command[0].replace("{workdir}", str(self.workdir))
        if "PATH" not in self.environment:
            program = own_python(program)
        named = str(self.workdir / program) if os.sep in program else program
        return shutil.which(named, path=self.environment.get("PATH", os.environ.get("PATH")))


@dataclass(slots=True)
class _Episode:
    """One episode of a command, whose folders are in ``folder``."""

    plugin: CommandWorkflow
    task: Task
    tuner: Tuner
    folder: Path

    @property
    def workspace(self) -> Path:
        """Where the program runs."""
        return self.plugin.workdir if self.plugin.workspace == SHARED else self.folder / "workspace"

    @property
    def home(self) -> Path | None:
        """Its HOME, if it has one of its own."""
        return None if self.plugin.home == SHARED else self.folder / "home"

    async def run(self) -> WorkflowOutput:
        """Run the program. Raises WorkflowFailed."""
        await to_its_end(self._make_folders)
        ended = await self._run()
        session = current_session.get()
        if session is not None:
            session.memory = max(session.memory, ended.memory)
        try:
            output = self._answer(ended)
        except WorkflowFailed as failure:
            # The agent is not to blame for an engine that fails, nor for a program that fails before the model is asked.
            if self.plugin.failed == "drop" or (
                session is not None and (session.engine_error or not session.record.answered)
            ):
                raise
            about = {"failed": failure.cause, "error": str(failure)}
            output = WorkflowOutput(response="", metadata=about)
        if self.plugin.failed == "judge":
            failed = float("failed" in output.metadata)
            output = replace(output, metrics={**output.metrics, "failed": failed})
        return await to_its_end(lambda: self._with_files(output)) if self.plugin.collect else output

    async def _run(self) -> Ended:
        plugin, endpoint = self.plugin, self.tuner.as_base_url()
        stop = asyncio.wrap_future(self.tuner.limit(calls=plugin.calls, tokens=plugin.tokens))
        prompts = current_prompts.get() or Prompts({})
        async with AsyncExitStack() as stack:
            variables = stack.enter_context(prompts.as_variables())
            walled = plugin.sandbox != "none"
            seen = inside(endpoint) if walled else endpoint
            values = {
                **values_of(self.task, seen),
                "workspace": str(self._seen(self.workspace)),
                "home": str(self._seen(self.home) if self.home else Path.home()),
                "workdir": str(plugin.workdir),
            }
            program = plugin._program() or plugin.command[0]
            command = [program, *(fill(word, values, self.task) for word in plugin.command[1:])]
            own = {name: fill(value, values, self.task) for name, value in plugin.environment.items()}
            told = json.dumps(as_json(self.task), default=str) if plugin.stdin == "task" else ""
            environment = {
                **plugin.inherited(),
                **seen.environment(),
                **variables,
                **self._at_home(),
                **({"AJET_TASK": told} if 0 < len(told) <= MOST_IN_ENVIRONMENT else {}),
                **own,
            }
            stdin = told if plugin.stdin == "task" else self.task.query if plugin.stdin == "query" else ""
            descriptors: Sequence[int] = ()
            if walled:
                shown = [*plugin.read, *map(Path, variables.values())]
                sandbox = await stack.enter_async_context(
                    sandboxed(command, self._seen(self.workspace), self._own_folders(), shown, endpoint)
                )
                command, descriptors = list(sandbox.command), sandbox.pass_fds
            return await run_process(
                command,
                self.folder if walled else self.workspace,
                environment,
                stdin.encode(errors="replace"),
                stop=stop,
                timeout=plugin.timeout,
                pass_fds=descriptors,
                bounds=self._bounds(),
                first_writes=walled,
            )

    def _bounds(self) -> Bounds | None:
        """Bounds of memory and disk: what the job says, and in a sandbox both."""
        plugin = self.plugin
        most = SANDBOX_BYTES if plugin.sandbox != "none" else sys.maxsize
        if plugin.sandbox == "none" and plugin.memory is plugin.disk is None:
            return None
        return Bounds(plugin.memory or most, plugin.disk or most, list(self._own_folders()))

    def _own_folders(self) -> dict[Path, Path]:
        return {path: self._seen(path) for path in (self.workspace, self.home) if path}

    def _seen(self, path: Path) -> Path:
        """Where the program finds one of its folders. In a sandbox that is the same in all episodes, and so are prompts that name
        it."""
        return path if self.plugin.sandbox == "none" else IN_SANDBOX / path.name

    def _at_home(self) -> dict[str, str]:
        if self.home is None:
            return {}
        home = self._seen(self.home)
        folders = {f"XDG_{name}_HOME": str(home / path) for name, path in _XDG.items()}
        return {"HOME": str(home), "TMPDIR": str(home / "tmp"), **folders}

    def _make_folders(self) -> None:
        plugin = self.plugin
        for folder, given in ((self.workspace, plugin.workspace), (self.home, plugin.home)):
            if folder is None or given == SHARED:
                continue
            folder.mkdir()
            if given != FRESH:
                copy_folder(self._filled(given), folder)
        if self.home:
            (self.home / "tmp").mkdir(exist_ok=True)
        if plugin.files is not None:
            write_files(self.workspace, field_of(plugin.files, self.task), f"metadata.{plugin.files}")

    def _filled(self, path: str) -> Path:
        """A path with placeholders, which is below its parts before the first of them, whatever the task says."""
        parts = Path(path).parts
        fixed = list(itertools.takewhile(lambda part: not has_placeholder(part), parts))
        values = {"id": self.task.id, "query": self.task.query}
        named = [fill(part, values, self.task) for part in parts[len(fixed) :]]
        folder = self.plugin._path(str(Path(*fixed)))
        return below(folder, os.sep.join(named), path) if named else folder

    def _answer(self, ended: Ended) -> WorkflowOutput:
        """What the program answered. Raises WorkflowFailed."""
        if ended.cause:
            command = shlex.join(self.plugin.command)
            how = _ENDED.get(ended.cause, "ended with " + ended.cause)
            raise WorkflowFailed(ended.cause, f"{command} {how}; {ended.said}{self._elsewhere()}")
        if self.plugin.answer == "stdout":
            if ended.own and _whole_output(ended.own):
                return read_answer(ended.own)
            if ended.line is None:
                raise WorkflowFailed("answer", f"the last line of stdout is longer than {MOST_ANSWER} bytes")
            if _whole_output(ended.line):
                raise WorkflowFailed(
                    "answer",
                    f"a process that {self.plugin.command[0]} has started wrote the last line of stdout, a whole output: so could what "
                    "the model runs. Let the program itself write it; a shell starts it with exec.",
                )
            return WorkflowOutput(response=ended.line)
        path = self.workspace / self.plugin.answer
        if (
            not os.path.realpath(path).startswith(os.path.realpath(self.workspace) + os.sep)
            or not path.is_file()
        ):
            raise WorkflowFailed("answer", f"the program wrote no file {self.plugin.answer}; {ended.said}")
        with path.open("rb") as file:
            text = file.read(MOST_ANSWER + 1)
        if len(text) > MOST_ANSWER:
            raise WorkflowFailed("answer", f"{self.plugin.answer} is longer than {MOST_ANSWER} bytes")
        return WorkflowOutput(response=text.decode(errors="replace"))

    def _elsewhere(self) -> str:
        """What to say of a file that the command names, and that is only in the job's folder."""
        here, words = self.plugin.workdir, self.plugin.command[1:]
        for word in words if self.workspace != here else ():
            if os.path.isfile(here / word) and not os.path.exists(self.workspace / word):
                return f"; {word} is in {here}, but the program runs in a folder of its own: name {{workdir}}/{word}"
        return ""

    def _with_files(self, output: WorkflowOutput) -> WorkflowOutput:
        files, left = collect(self.workspace, self.plugin.collect)
        metadata, metrics = dict(output.metadata), dict(output.metrics)
        if left:
            metadata["files_left_out"] = dict(list(left.items())[:_MOST_TOLD])
            metrics["files_left_out"] = float(len(left))
        return replace(output, files=files, metadata=metadata, metrics=metrics)


_MOST_TOLD = 20
"""Files left out that are named."""
_ENDED = {
    "calls": "was ended at its limit of LLM calls",
    "tokens": "was ended at its limit of sampled tokens",
    "timeout": "was ended at its time limit",
    "processes": "was ended because it had too many processes",
    "memory": "was ended because its processes had more memory than workflow.memory",
    "disk": "was ended because its workspace and home were larger than workflow.disk",
}


def as_json(task: Task) -> dict[str, Any]:
    """A task as the command gets it."""
    return {
        "id": task.id,
        "query": task.query,
        "messages": [dict(m) for m in task.messages],
        "metadata": dict(task.metadata),
    }


def _whole_output(line: str) -> dict[str, Any] | None:
    """The JSON object of a line that has fields of `WorkflowOutput`; None of any other line."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) and parsed.keys() & set(_FIELDS) else None


def read_answer(line: str) -> WorkflowOutput:
    """Parse the last line of stdout: a JSON object with fields of `WorkflowOutput`, else plain text. Raises
    WorkflowFailed for an object with such fields and faults."""
    answer = _whole_output(line)
    if answer is None:
        return WorkflowOutput(response=line)
    if unknown := sorted(answer.keys() - set(_FIELDS)):
        raise _unreadable(f"has an unknown field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
    reward, is_success = answer.get("reward"), answer.get("is_success")
    metrics, metadata = answer.get("metrics") or {}, answer.get("metadata") or {}
    if reward is not None and not _is_number(reward):
        raise _unreadable(f"has the reward {reward!r}; expected a number")
    if is_success is not None and not isinstance(is_success, bool):
        raise _unreadable(f"has is_success {is_success!r}; expected true or false")
    if not isinstance(metrics, dict) or not all(map(_is_number, metrics.values())):
        raise _unreadable("has metrics that are not an object of numbers")
    if not isinstance(metadata, dict):
        raise _unreadable("has metadata that is not an object")
    return WorkflowOutput(
        None if reward is None else float(reward), answer.get("response"), is_success, metadata, metrics
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unreadable(fault: str) -> WorkflowFailed:
    return WorkflowFailed("answer", f"the last line of stdout is a JSON object that {fault}")
