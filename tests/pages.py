"""Code blocks of documentation pages."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def page(path: str) -> str:
    """The text of a page, such as docs/judges.md."""
    return (ROOT / path).read_text(encoding="utf-8")


def tool(name: str, folder: str = "tools") -> ModuleType:
    """A script of a folder as a module; it finds the other ones as if it were run."""
    sys.path.insert(0, str(ROOT / folder))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / folder))


def files(text: str) -> dict[str, str]:
    """Code blocks that follow a file name in backticks, by that name."""
    found = re.findall(r"^`([\w./-]+)`:\n\n(`{3,})\w+\n(.*?)^\2$", text, re.MULTILINE | re.DOTALL)
    return {name: content for name, _, content in found}


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of a language; "" for those that name none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [code for named, code in found if named == language]


def keys_said(text: str) -> set[str]:
    """The keys of a job in the first cells of a page's tables, and those after its words "do not differ"."""
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    alike = text.partition("do not differ:")[2].partition(".\n")[0]
    return {key for part in (*cells, alike) for key in re.findall(r"`([^`]+)`", part)}
