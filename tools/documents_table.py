"""The site's page on what the five documents promise, from tests/documents.yaml.

python tools/documents_table.py prints it.
"""

from __future__ import annotations

import posixpath
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
HEAD = """# What the documents promise

AgentJet continues AgentScope Tuner and the earlier AgentJet, and takes the place of AgentScope's tuner and of its training
extension. Five documents describe these: two readmes of AgentScope Tuner, AgentScope's page on its tuner, the first readme of
AgentJet, and the page on AgentScope's extension for online training. The tables list all that they promise, in our words.

`tests/documents.yaml` has the rows.

- **Where**: the page that explains it.
- **Shown by**: a test of the repository, or a command. `python -m pytest -m "" TEST` runs a test. Those in
  `tests/plugins/verl` and `tests/plugins/trinity` need the environments of `make test-verl` and `make test-trinity`, and those of
  AgentScope 1 that of `make test-agentscope-samples`.
- **State**: it *works*; or it *waits for* hardware or a program, without which only a part was tried; or it *differs* from the
  promise, with the reason.

"""
PAGES = "docs"
"""The folder to which the file's links are relative."""


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


def page() -> str:
    """The page, whose links are relative to docs/."""
    return HEAD + "\n".join(table())


if __name__ == "__main__":
    print(page())
