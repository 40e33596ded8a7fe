"""Writes the tables of docs/documents.md from tests/documents.yaml. A test compares the page with them.

python tools/documents_table.py docs/documents.md
"""

from __future__ import annotations

import posixpath
import re
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tables
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = "docs"
"""The folder of the page, to which the file's links are relative."""


@dataclass(frozen=True)
class Row:
    """A feature that a document promises."""

    number: int
    feature: str
    where: str
    """A page, with or without ``#anchor``."""
    shown: str
    """A test, ``tests/x.py::test_y``, or a command."""
    waits: str = ""
    """The hardware or the program without which a part was not tried."""
    differs: str = ""
    """What is otherwise than promised, and why."""

    @property
    def state(self) -> str:
        """What the last column says."""
        if self.differs:
            return f"differs: {self.differs}"
        return f"waits for {self.waits}" if self.waits else "works"


def documents() -> dict[str, list[Row]]:
    """The rows of the file, by document."""
    sections = yaml.safe_load((ROOT / "tests" / "documents.yaml").read_text(encoding="utf-8"))
    return {section["document"]: [Row(**row) for row in section["rows"]] for section in sections}


def headings(path: str) -> dict[str, str]:
    """The headings of a page by their anchors; that of its title is ""."""
    text = (ROOT / path).read_text(encoding="utf-8")
    without_code = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {"": found[0], **{anchor(heading): heading for heading in found[1:]}}


def anchor(heading: str) -> str:
    """The anchor that the site gives a heading."""
    ascii_only = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", ascii_only).strip().lower())


def link(where: str) -> str:
    """A link with the titles of its page and its section. Raises KeyError if there is no such section."""
    page, _, section = where.partition("#")
    names = headings(posixpath.normpath(posixpath.join(PAGES, page)))
    title = names[""].partition(":")[0]
    return f"[{title}: {names[section]}]({where})" if section else f"[{title}]({where})"


def table() -> Iterator[str]:
    """The lines of the tables."""
    found = documents()
    states = [row.state.partition(" ")[0].strip(":") for rows in found.values() for row in rows]
    works, waits, differs = (states.count(state) for state in ("works", "waits", "differs"))
    yield f"Of {len(states)} features, {works} work, {waits} wait for something, and {differs} differ."
    for document, rows in found.items():
        yield from ("", f"## {document}", "")
        yield "| | feature | where | shown by | state |"
        yield "|---|---|---|---|---|"
        for row in rows:
            yield f"| {row.number} | {row.feature} | {link(row.where)} | `{row.shown}` | {row.state} |"


def with_table(page: str) -> str:
    """A page with the tables between its marks."""
    return tables.with_table(page, "documents_table.py", table())


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_table(file.read_text(encoding="utf-8")), encoding="utf-8")
