"""families.md: what `tests.chat.programme` found, a row for each family."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chat.families import FAMILIES
from tests.chat.programme import Result

PAGE = Path(__file__).with_name("families.md")
SHARE = 0.9
"""How many of the families have to be complete."""

_COMPLETE, _RIGHT = "yes", "right in this form"

_HEAD = """# The families of models

`make test-templates ARGS=--record` writes this page; [its guide](../../docs/models.md) says what is tried. {complete} of {published}
published templates are complete, and {right} of {own} forms are right; {lose} of them loses calls without an error.

- **Template**: *TRL* is a file of the TRL package, *own* a form that is written for this test.
- **How calls are read**: the form of a call, and what showed it: the chat template, or a token of the vocabulary
  where the template writes no calls. *not read* stands for models without tools, and for those whose requests with
  tools are refused.
- **Timelines**: first those of a tool loop of four calls, then those of a chat of four answers whose thoughts the
  client drops. 1 means that all of it is trained as one sequence; 4 means that every answer is trained with a history
  of its own, which costs time but is as exact ([the context tracker](../../docs/tracker.md)).
- **Complete**: *right in this form* stands for own forms. *refused; read with an example* means that requests with tools
  are refused until `rollout.call_example` is set. If the template raises an error, transformers cannot render such a chat either.
- **Notes**: *unseen* families were added after the readers were written. A variable such as
  `thinking: true` is set in `rollout.chat_template`.
- A dash means that there is none.

| Family | Template | A call | How calls are read | Thoughts | Stops | Timelines: tools, chat | Complete | Notes |
|---|---|---|---|---|---|---|---|---|
"""


def row(result: Result) -> str:
    """A family's row."""
    family = result.family
    call = family.calls.text([("f", {"a": 1})]) if family.calls else ""
    notes = [_plain(family.remark)] if family.remark else []
    if family.calls and not result.shows_tools and not result.template_refuses:
        notes.append("the template does not show tools")
    if not family.known:
        notes.append("unseen")
    if family.variables:
        notes += [_code(f"{key}: {str(value).lower()}") for key, value in family.variables.items()]
    cells = [
        _plain(family.name),
        "TRL" if family.is_published else "own",
        _code(call),
        _plain(result.described) or "–",
        _code("…".join(family.thought)) if family.thought else "–",
        " ".join(_code(stop) for stop in result.stops) or "–",
        f"{result.loop or '–'}, {result.plain[0] or '–'}",
        (_COMPLETE if family.is_published else _RIGHT) if result.is_complete else _plain(f"no: {result.why}"),
        "; ".join(notes),
    ]
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    shown = text.strip("\n").replace("\n", "⏎")
    return f"<code>{_plain(shown)}</code>" if shown else "–"


def _plain(text: str) -> str:
    """A text that Markdown shows as it is, also in a table."""
    return re.sub(r"[|*_\[\]`\\]", lambda m: f"&#{ord(m[0])};", html.escape(text, quote=False))


def page(rows: Mapping[str, str]) -> str:
    """The page; ``rows`` are the rows of the families, by name."""
    found = [rows[name] for name in FAMILIES]
    published = [row for row in found if _cells(row)[1] == "TRL"]
    head = _HEAD.format(
        published=len(published),
        own=len(found) - len(published),
        complete=sum(_cells(row)[7] == _COMPLETE for row in published),
        right=sum(_cells(row)[7] == _RIGHT for row in found),
        lose=sum(map(loses_calls, found)) or "none",
    )
    return head + "\n".join(found) + "\n"


def is_complete(row: str) -> bool:
    """Whether a row says that its published template is complete, or its form right."""
    return _cells(row)[7] in (_COMPLETE, _RIGHT)


def loses_calls(row: str) -> bool:
    """Whether a row says that its family loses calls without an error."""
    return "calls lost" in _cells(row)[7]


def committed() -> dict[str, str]:
    """The rows of the page as it is, by the families' names."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    return {html.unescape(_cells(line)[0]): line for line in rows}


def _cells(row: str) -> list[str]:
    return [cell.strip() for cell in row.split("|")[1:-1]]


def summary(rows: Iterable[str]) -> str:
    """One line on all families."""
    found = list(rows)
    complete, lose = sum(map(is_complete, found)), sum(map(loses_calls, found))
    return f"{complete} of {len(found)} templates and forms are complete; {lose} lose calls without an error"
