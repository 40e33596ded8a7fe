"""Tunable text: what a workflow asks for with `ajet.prompt`, and the files that hold tuned texts."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

import yaml

from ajet.types import ConfigError
from ajet.utils.yaml_file import read_yaml

VARIABLE = "AJET_PROMPTS"
"""The environment variable that names a file of texts, for agents outside of a job."""
_NAME = re.compile(r"[A-Za-z_][\w-]*")


class Prompts:
    """The texts of one episode, and those that its workflow asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self.asked: dict[str, str] = {}
        """Name -> the text that the workflow gets if the job holds none for that name."""

    def text(self, name: str, otherwise: str) -> str:
        """The text of a name."""
        self.asked[name] = otherwise
        return self._texts.get(name, otherwise)

    @contextmanager
    def as_variables(self) -> Iterator[dict[str, str]]:
        """A block with a file of the texts: the environment variable that names it, for a program that the workflow
        starts. Without texts there is neither."""
        if not self._texts:
            yield {}
            return
        self.asked |= dict.fromkeys(self._texts, "")  # a program declares no defaults
        with tempfile.TemporaryDirectory(prefix="ajet-prompts-") as folder:
            file = Path(folder) / "prompts.yaml"
            file.write_text(as_yaml({**_elsewhere(), **self._texts}), encoding="utf-8")
            yield {VARIABLE: str(file)}


current_prompts: ContextVar[Prompts | None] = ContextVar("ajet_prompts", default=None)


def prompt(name: str, default: str) -> str:
    """A text that `ajet tune-prompt` may improve. In a job it is the text under ``name`` in the job's ``prompts``, elsewhere
    in the file that the environment variable ``AJET_PROMPTS`` names; without either it is ``default``.

    ``name`` consists of letters, digits, ``_`` and ``-``. ``default`` must be the same in every episode: what depends on the
    task belongs behind it. Raises ValueError for another name, and ConfigError if the file cannot be read.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"prompt {name!r}: use letters, digits, _ and -, and begin with a letter")
    text = _elsewhere().get(name, default)
    here = current_prompts.get()
    return text if here is None else here.text(name, text)


def read_prompts(path: Path) -> dict[str, str]:
    """The texts of a file by name. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file of prompts. `ajet tune-prompt` writes one.")
    texts = read_yaml(path)
    if not isinstance(texts, dict):
        raise ConfigError(f"{path}: a file of prompts is a mapping, name: text.")
    for name, text in texts.items():
        if not (isinstance(name, str) and _NAME.fullmatch(name) and isinstance(text, str)):
            raise ConfigError(f"{path}: {name}: write name: text, with a name of letters, digits, _ and -.")
    return texts


def as_yaml(texts: Mapping[str, str]) -> str:
    """Texts as a file that people can read and edit: several lines are written as such."""
    return yaml.dump(dict(texts), Dumper=_Readable, sort_keys=False, allow_unicode=True, width=1000)


class _Readable(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _block)


def _elsewhere() -> Mapping[str, str]:
    """The texts that the environment variable names."""
    path = os.environ.get(VARIABLE)
    return _kept(path) if path else {}


@cache
def _kept(path: str) -> Mapping[str, str]:
    return read_prompts(Path(path))
