"""Lines on stderr, and plain aligned columns: the same on a terminal, in a log and in a test."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from shutil import get_terminal_size

MOST = 44
_ESCAPED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters other than tab and newline, characters that change the text direction, and lone surrogates."""


def tell(text: str) -> None:
    """Print a line for the user on stderr, apart from the command's output."""
    print(text, file=sys.stderr, flush=True)


def entry(head: str, text: str) -> str:
    """An entry of a list: a head, and below it a text, in lines that fit the terminal; at most 100 characters, as in a log."""
    width = max(40, min(100, get_terminal_size((100, 24)).columns))
    below = textwrap.wrap(text, width, initial_indent=4 * " ", subsequent_indent=4 * " ")
    return "\n".join([*textwrap.wrap(head, width, subsequent_indent=8 * " "), *below])


def table(rows: Iterable[Sequence[str]], *, indent: str = "", most: int = MOST) -> str:
    """Rows as lines, each column as wide as its widest cell of at most ``most`` characters; a longer cell does not shift
    the others."""
    rows = [tuple(row) for row in rows]
    columns = max((len(row) for row in rows), default=0)
    widths = [min(most, max((len(r[i]) for r in rows if i < len(r)), default=0)) for i in range(columns)]
    return "\n".join(
        indent + "  ".join(cell.ljust(widths[i]) for i, cell in enumerate(row)).rstrip() for row in rows
    )


def readable(text: str) -> str:
    """Text with every unprintable character written as an escape."""
    return _ESCAPED.sub(lambda c: ascii(c[0])[1:-1], text)
