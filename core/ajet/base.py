"""The base of every plugin: a frozen, picklable configuration that can open its resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A section of the job: frozen, every key known, defaults checked too."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


PathOrName = Annotated[str, "path or name"]
"""A field that may name a file or a folder, or something that lies elsewhere (``org/name`` on a hub): made
absolute only where there is such a path."""


class Plugin(Settings):
    """Its fields are its configuration, its docstring is its help.

    Resources (connections, models, subprocesses) live in ``async with plugin.open() as live:``;
    the plugin itself stays plain data, so that it can be sent to another process.
    """

    name: ClassVar[str]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Override to hold resources while a job runs; yield the object that does the work."""
        yield self


def first_line(obj: Any) -> str:
    """The first line of an object's docstring, for lists and help."""
    return (obj.__doc__ or "").strip().split("\n", 1)[0]
