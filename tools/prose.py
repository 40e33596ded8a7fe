"""Find unclear phrases in the docs, and in the strings and comments of the code: `make lint`.

Vale does more, but its package on PyPI fetches a program from the internet when it first runs.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

BETTER = {
    r"(?<!there )\bis no (?!longer\b|more\b|less\b|other\b|such\b|different\b|better\b)\w+": "is not a …",
    r"\b[Nn]obody\b": "name the actor, or use the passive voice",
    r"\b[Ss]omebody\b": "name the actor",
    r"\b[Ww]hoever\b": "name the actor",
    r"\bits end ends\b": "say what stops",
    r"\b[Mm]end\b": "fix",
    r"\botherwise than\b": "differently from",
}
"""Patterns, and what to write instead."""
TEXT = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.COMMENT)}
# The last one is what a model learns.
LEFT_ALONE = {"CHANGELOG.md", "tools/prose.py", "plugins/local/ajet_local/smollm2/tool_words.py"}


def main() -> int:
    listed = subprocess.run(
        ["git", "ls-files", "*.md", "core/*.py", "plugins/*.py"], capture_output=True, text=True
    )
    found = 0
    for name in listed.stdout.splitlines():
        if name in LEFT_ALONE or not Path(name).exists():
            continue
        for line, text in pieces(Path(name)):
            for pattern, better in BETTER.items():
                for match in re.finditer(pattern, text):
                    at = line + text.count("\n", 0, match.start())
                    print(f"{name}:{at}: {match[0]!r}: {better}")
                    found += 1
    return 1 if found else 0


def pieces(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a file, each with the number of its first line."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield 1, source
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXT:
            yield token.start[0], token.string


if __name__ == "__main__":
    sys.exit(main())
