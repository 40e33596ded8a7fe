"""Harbor's tasks: folders with a `task.toml`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from ajet import ConfigError, Task
from ajet.interfaces.reader import SelectingReader
from ajet_harbor import trials
from ajet_harbor.versions import harbor


class HarborTasks(SelectingReader):
    """Tasks in Harbor's format: a folder of them, one of them, or a dataset of a registry.

    A task's query is its instruction; its metadata are ``path``, its folder, ``source``, its dataset, ``agent_seconds``, its time
    limit for agents if it has one, and the table ``metadata`` of its `task.toml`. Tests and solution stay in the folder.
    """

    name = "harbor"

    path: Path | None = Field(None, description="A task's folder, or a folder of such folders.")
    dataset: str = Field(
        "",
        description="Instead of a path: a dataset of a registry, NAME or NAME@VERSION; it is downloaded once.",
    )
    registry_path: Path | None = Field(
        None, description="The registry, as a JSON file; default: Harbor's own, in the network."
    )
    registry_url: str = Field("", description="The registry, as a URL.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (not self.dataset):
            raise ValueError("name either `path`, a folder, or `dataset`")
        if self.path and (self.registry_path or self.registry_url):
            raise ValueError("a registry has datasets: name `dataset` instead of `path`")
        if self.registry_path and self.registry_url:
            raise ValueError("name one registry: registry_path or registry_url")
        return self

    def source(self) -> Iterator[Task]:
        """See `SelectingReader.source`."""
        try:
            harbor()
        except ValueError as error:
            raise ConfigError(f"{error}.") from None
        if self.path is not None:
            for folder in task_folders(self.path):
                yield read(folder, folder.parent.name)
        else:
            for folder in self._downloaded():
                yield read(folder, self.dataset)

    def describe_duplicate(self, first: Task, second: Task) -> str:
        """See `Reader.describe_duplicate`."""
        return f"duplicate task name {first.id!r}: {first.metadata['path']} and {second.metadata['path']}"

    def _downloaded(self) -> Sequence[Path]:
        where = self.registry_path or self.registry_url or "Harbor's registry"
        try:
            return trials.submit(_download(self)).result()
        except Exception as error:  # of the file, the network, git, or a dataset that is not there
            raise ConfigError(f"dataset {self.dataset!r} of {where}: {one_line(error)}.") from error


def task_folders(path: Path) -> list[Path]:
    """The folder itself if it is a task's, else those in it that are. Raises ConfigError if there is none."""
    if not path.is_dir():
        raise ConfigError(f"{path}: no such folder. Check the reader's `path`.")
    if (path / "task.toml").is_file():
        return [path.resolve()]
    if folders := sorted(folder.parent.resolve() for folder in path.glob("*/task.toml")):
        return folders
    raise ConfigError(
        f"{path}: neither this folder nor one in it has a task.toml. Check the reader's `path`."
    )


def read(folder: Path, source: str) -> Task:
    """A task of its folder. Raises ConfigError that names the folder."""
    try:
        task = harbor().Task(folder)
        instruction = task.instruction or "\n\n".join(
            task.paths.step_instruction_path(step.name).read_text() for step in task.config.steps or ()
        )
    except (OSError, ValueError, RuntimeError) as error:  # pydantic's and TOML's errors are ValueErrors
        raise ConfigError(f"{folder}: not a task that Harbor can run ({one_line(error)}).") from error
    about: dict[str, Any] = {"path": str(folder), "source": source}
    if task.config.agent.timeout_sec is not None:
        about["agent_seconds"] = task.config.agent.timeout_sec
    return Task(task.name, instruction.strip(), metadata={**task.config.metadata, **about})


async def _download(reader: HarborTasks) -> Sequence[Path]:
    from harbor.tasks.client import TaskClient

    name, _, version = reader.dataset.partition("@")
    dataset = harbor().DatasetConfig(
        name=name,
        version=version or None,
        registry_path=reader.registry_path,
        registry_url=reader.registry_url or None,
    )
    configs: list[Any] = await dataset.get_task_configs()
    base = reader.registry_path.parent if reader.registry_path else Path()
    for config in configs:
        if config.path and not config.is_git_task():  # of a registry in a file: beside it
            config.path = base / config.path
    got = await TaskClient().download_tasks(task_ids=[config.get_task_id() for config in configs])
    return [result.path for result in got.results]


def one_line(error: BaseException) -> str:
    """The class and the message of an exception, without line ends."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}".rstrip(": .")
