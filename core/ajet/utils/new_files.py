"""Folders of new files that are written from templates, in which ``«name»`` stands for a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ajet.types import ConfigError


def filled(template: Path, values: Mapping[str, str]) -> str:
    """The text of a template with its values."""
    text = template.read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"«{name}»", value)
    return text


def write_new(folder: Path, files: Mapping[str, str]) -> None:
    """Write files, by their paths in a folder that is empty or does not exist yet. Raises ConfigError, which names ``--folder``."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"{folder} already exists; name a new folder with --folder.")
        for path, text in files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--folder {folder} cannot be written ({error.strerror}).") from None
