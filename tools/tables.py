"""Tables of pages that a script writes, between two marks."""

from __future__ import annotations

from collections.abc import Iterable

END = "<!-- end of the table -->"


def with_table(page: str, script: str, lines: Iterable[str]) -> str:
    """A page with these lines between the marks of a script of this folder."""
    begin = f"<!-- table: tools/{script} -->\n"
    before, _, rest = page.partition(begin)
    return before + begin + "\n".join(lines) + "\n" + END + rest.partition(END)[2]
