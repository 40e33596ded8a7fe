"""Checks the installed versions of another program and of what it needs, and finds its platforms."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ajet import ConfigError, Finding


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that a backbone needs. ``tested`` and ``own`` (what the program itself requires) are versions or their
    beginnings; without any, every version will do."""

    name: str
    tested: tuple[str, ...]
    install: str
    own: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    """Other distributions with the same module."""
    exact: bool = False
    """Whether another version is an error instead of a warning, because the plugin depends on internals."""


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """The installed version of a needed distribution, or None; ``backbone`` is the name of the one that needs it."""

    needed: Needed
    backbone: str
    version: str | None

    @property
    def is_known(self) -> bool:
        """Whether we have tested this version, or the program requires it."""
        known = (*self.needed.tested, *self.needed.own)
        return self.version is not None and (not known or any(_begins(self.version, k) for k in known))

    @property
    def is_fatal(self) -> bool:
        """Whether no job can run: it is not installed, or `Needed.exact` and another version."""
        return self.version is None or (self.needed.exact and not self.is_known)

    @property
    def problem(self) -> str:
        """One line with the installed and tested versions and the command that installs them; "" if all is well."""
        if self.is_known:
            return ""
        needed = self.needed
        state = f"{self.version} was not tested" if self.version else "is not installed"
        known = f"; {self.backbone}'s own: ".join(filter(None, map(", ".join, (needed.tested, needed.own))))
        return f"{needed.name} {state}{f' (tested: {known})' if known else ''}. {needed.install}"


@dataclass(frozen=True, slots=True)
class Requirements:
    """What a backbone needs; the first of ``needed`` is the program in which it trains. ``prefix`` stands before the names of
    the others in `ajet doctor`."""

    backbone: str
    needed: Sequence[Needed]
    prefix: str = ""

    def found(self) -> list[FoundVersion]:
        """What is installed of each."""
        return [
            FoundVersion(
                one, self.backbone, next(filter(None, map(_version, (one.name, *one.instead))), None)
            )
            for one in self.needed
        ]

    def check(self) -> list[str]:
        """Warnings about untested versions, one line each. Raises ConfigError for a missing or unusable one."""
        problems = [each for each in self.found() if each.problem]
        for version in problems:
            if version.is_fatal:
                raise ConfigError(f"backbone {self.backbone}", version.problem)
        return [f"backbone {self.backbone}: {each.problem}" for each in problems]

    def missing(self) -> str:
        """The message for a program that is not installed."""
        return FoundVersion(self.needed[0], self.backbone, None).problem

    def findings(self) -> Iterator[Finding]:
        """The lines of `ajet doctor`. If the program is not installed, this is a single line of information, because its
        requirements, which few environments meet, then do not matter."""
        versions = self.found()
        program = versions[0]
        if program.version is None:
            remedy = f"in a separate environment (`ajet docs {self.backbone}`): {program.needed.install}"
            yield Finding(f"backbone {self.backbone}", "not installed", remedy, optional=True)
            return
        for one in versions:
            yield Finding(
                f"{self.prefix}{one.needed.name}",
                one.version or "not installed",
                one.problem,
                optional=not one.is_fatal,
            )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _begins(version: str, tested: str) -> bool:
    return re.match(rf"{re.escape(tested)}(?!\d)", version) is not None


def platform_defaults(backbone: str) -> Mapping[str, Any]:
    """A platform's values for dotted keys of the program: the mapping behind the entry point, in the group
    ``ajet_BACKBONE.platforms``, that the variable BACKBONE_PLATFORM names; {} if there is none of that name."""
    name = os.environ.get(f"{backbone.upper()}_PLATFORM", "")
    for entry in importlib.metadata.entry_points(group=f"ajet_{backbone}.platforms", name=name):
        values: Mapping[str, Any] = entry.load()
        return values
    return {}
