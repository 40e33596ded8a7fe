"""Checks the installed versions of Trinity and of what it needs."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ajet.types import ConfigError, Finding


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that the backbone needs. ``tested`` is a version or its beginning; "" stands for any version."""

    name: str
    tested: str
    install: str
    exact: bool = False
    """Whether another version is an error instead of a warning, because the plugin depends on internals."""


NEEDED = (
    Needed("trinity-rft", "0.6.0", "pip install trinity-rft==0.6.0", exact=True),
    Needed("verl", "0.8.0", "pip install verl==0.8.0", exact=True),
    Needed("ray", "2.60", "pip install 'ray[default]==2.60.0'"),
    Needed("transformers", "5.23", "pip install transformers==5.23.0"),
    Needed("tensordict", "0.10", "pip install tensordict==0.10.0"),
    Needed("numpy", "2", "pip install 'numpy>=2' after the others, as verl 0.8 asks for an older one"),
    # Trinity imports these without naming them in its requirements.
    Needed("greenlet", "", "pip install greenlet"),
    Needed("fastapi", "", "pip install fastapi"),
    Needed("cachetools", "", "pip install cachetools"),
)
"""The tested versions ran on a CPU (`make test-trinity`)."""


@dataclass(frozen=True, slots=True)
class Found:
    """The installed version of one of `NEEDED`, or None."""

    needed: Needed
    version: str | None

    @property
    def is_tested(self) -> bool:
        if self.version is None:
            return False
        tested = self.needed.tested
        return not tested or re.match(rf"{re.escape(tested)}(?!\d)", self.version) is not None

    @property
    def is_fatal(self) -> bool:
        """Whether no job can run: it is not installed, or `Needed.exact` and another version."""
        return self.version is None or (self.needed.exact and not self.is_tested)

    @property
    def problem(self) -> str:
        """One line with the installed and tested versions and the command that installs them; "" if all is well."""
        name, tested = self.needed.name, self.needed.tested
        told = f" (tested: {tested})" if tested else ""
        if self.version is None:
            return f"{name} is not installed{told}. {self.needed.install}"
        if not self.is_tested:
            return f"{name} {self.version} was not tested{told}. {self.needed.install}"
        return ""


def found() -> Iterator[Found]:
    """What is installed of each of `NEEDED`."""
    for needed in NEEDED:
        yield Found(needed, version_of(needed.name))


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check() -> list[str]:
    """Warnings about untested versions, one line each. Raises ConfigError for a missing or unusable one."""
    warnings = []
    for one in found():
        if one.is_fatal:
            raise ConfigError(f"backbone trinity: {one.problem}")
        if one.problem:
            warnings.append(f"backbone trinity: {one.problem}")
    return warnings


def findings() -> Iterator[Finding]:
    """The lines of `ajet doctor`. If Trinity is not installed, this is a single line of information, because its
    requirements, which contradict those of other backbones, then do not matter."""
    parts = list(found())
    if parts[0].version is None:
        remedy = f"in a separate environment (docs/trinity.md): {parts[0].needed.install}"
        yield Finding("backbone trinity", "not installed", remedy, optional=True)
        return
    for one in parts:
        yield Finding(
            f"trinity: {one.needed.name}",
            one.version or "not installed",
            one.problem,
            optional=not one.is_fatal,
        )
