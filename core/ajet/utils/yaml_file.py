"""Reads hand-written YAML with limits; every error names the line.

PyYAML accepts a file of a kilobyte that refers to itself, or a billion times to its own parts, and the caller's code
then fails. So the document is first scanned event by event, which needs no recursion and no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ajet.types import ConfigError

_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Eight times as fast as the other one, where PyYAML was built with libyaml."""
_LONGEST = 16 << 20
"""Maximum bytes of a file."""
_DEEPEST = 100
"""Maximum depth of nested mappings and lists."""
_MOST = 1_000_000
"""Maximum values, counted as often as aliases repeat them."""


def read_yaml(path: Path) -> Any:
    """The value of a file; None if it is empty. Raises ConfigError with file and line."""
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise ConfigError(f"{path}: longer than {_LONGEST >> 20} MiB. Make it shorter.")
        return parse_yaml(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start + 1}). Save it as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None


def parse_yaml(text: str, source: str) -> Any:
    """The value of a text; None if it is empty. Raises ConfigError that begins with the source and a line number."""
    try:
        try:
            return _load(text, source, _FAST)
        except yaml.YAMLError:  # the other one says better what is wrong
            return _load(text, source, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        where = f"{source}:{error.problem_mark.line + 1}" if error.problem_mark else source
        raise ConfigError(where, f"not YAML ({error.problem}). Fix the line.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a NUL; the 32nd of May; 5,000 digits
        raise ConfigError(source, f"not YAML that can be read ({' '.join(str(error).split())}).") from None


def _load(text: str, source: str, loader: Any) -> Any:
    _check(text, source, loader)
    return yaml.load(text, loader)


def _check(text: str, source: str, loader: Any) -> None:
    """Refuse values that are nested too deep, contain themselves, or repeat too often, and keys that stand twice. Raises ConfigError,
    YAMLError."""
    sizes: dict[str, int] = {}
    """Number of values in each anchor's mapping or list, once it has ended."""
    opened: list[_Open] = []
    values = 0
    for event in yaml.parse(text, Loader=loader):
        where = f"{source}:{event.start_mark.line + 1}" if event.start_mark else source
        if opened and isinstance(event, yaml.NodeEvent) and (doubled := opened[-1].doubled(event)):
            raise ConfigError(where, f"{doubled[:80]} stands twice in one mapping. Remove one of them.")
        if isinstance(event, yaml.CollectionEndEvent):
            ended = opened.pop()
            if ended.anchor:
                sizes[ended.anchor] = values - ended.before
        elif isinstance(event, yaml.AliasEvent):
            if any(one.anchor == event.anchor for one in opened):
                raise ConfigError(where, f"*{event.anchor} contains itself. Write the value in full.")
            values += sizes.get(str(event.anchor), 1)
        elif isinstance(event, yaml.NodeEvent):
            values += 1
            if isinstance(event, yaml.CollectionStartEvent):
                keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
                opened.append(_Open(event.anchor, values - 1, keys))
            elif event.anchor:
                sizes[event.anchor] = 1
        if len(opened) > _DEEPEST:
            raise ConfigError(where, f"nested deeper than {_DEEPEST} levels. Make it flatter.")
        if values > _MOST:
            raise ConfigError(
                where, f"more than {_MOST:,} values, including those that aliases repeat. Use fewer."
            )


@dataclass(slots=True)
class _Open:
    """An open mapping or list."""

    anchor: str | None
    before: int
    """How many values there were before it."""
    keys: set[str] | None
    """Of a mapping; None of a list."""
    at_value: bool = False
    """Whether the next node of a mapping is a value."""

    def doubled(self, event: yaml.NodeEvent) -> str:
        """Take the next node; the key that it is, if that was there before, else ""."""
        is_key, self.at_value = not self.at_value, not self.at_value
        if self.keys is None or not is_key or not isinstance(event, yaml.ScalarEvent) or event.value == "<<":
            return ""
        twice = str(event.value) if event.value in self.keys else ""
        self.keys.add(event.value)
        return twice
