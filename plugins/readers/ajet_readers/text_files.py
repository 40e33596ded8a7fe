"""Rows of CSV and JSON files as they stand there: the library `datasets` would take 007 for the number 7, and a date for a time."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from pathlib import Path
from typing import Any

from ajet import ConfigError
from ajet_readers.jsonl import parse_line, read_lines

_TEXT = re.compile(r"\.(csv|jsonl?)(\.gz)?", re.IGNORECASE)


def text_files(path: Path, split: str) -> list[Path]:
    """``path``, if it is a CSV or JSON file; such files of a folder that are named by the split."""
    if path.is_file():
        return [path] if _TEXT.fullmatch("".join(path.suffixes[-2:])) or _TEXT.fullmatch(path.suffix) else []
    if not path.is_dir():
        return []
    named = re.compile(rf"{re.escape(split)}([-_.].*)?{_TEXT.pattern}", re.IGNORECASE)
    return sorted(file for file in path.iterdir() if named.fullmatch(file.name))


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Each cell of a CSV file is text; JSON, a list or one object a line, keeps its types. Raises ConfigError with file and line."""
    if ".csv" in (suffix.lower() for suffix in file.suffixes[-2:]):
        return _csv(file)
    lines = list(read_lines(file))
    start = next((line.removeprefix(b"\xef\xbb\xbf").lstrip() for line in lines if line.strip()), b"")
    if not start.startswith(b"["):
        numbered = enumerate(lines, start=1)
        return [parse_line(line, f"{file}:{n}", "Fix the line.") for n, line in numbered if line.strip()]
    try:
        rows = json.loads(b"".join(lines).decode("utf-8-sig"))
    except ValueError as error:
        raise ConfigError(f"{file}: not JSON ({error}). Fix the file.") from None
    if not all(isinstance(row, dict) for row in rows):
        raise ConfigError(
            f"{file}: a list of something else than JSON objects. Each entry must be one {{…}}."
        )
    return list(rows)


def _csv(file: Path) -> list[dict[str, Any]]:
    try:
        packed = file.read_bytes()
        text = (gzip.decompress(packed) if file.suffix == ".gz" else packed).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except (OSError, ValueError, EOFError, csv.Error) as error:
        raise ConfigError(f"{file}: no CSV file in UTF-8 ({error}). Save it again.") from None
    for number, row in enumerate(rows):
        if None in row:
            raise ConfigError(f"{file}: row {number} has more cells than the first line names. Fix the row.")
    return [{name: "" if cell is None else cell for name, cell in row.items()} for row in rows]
