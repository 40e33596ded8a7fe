"""Tasks from a file with one JSON object a line.

A fault in the data is an error with file and line, unless the job sets `on_error: skip`: a training set that
silently shrinks is worse than one that does not load.
"""

from __future__ import annotations

import codecs
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from pydantic import Field

from ajet import ConfigError
from ajet.interfaces.helpers import nearest
from ajet_readers.records import RecordReader, kind_of

MiB = 1 << 20
LONGEST = 64 * MiB
"""Default maximum of a line, in bytes."""
_MOST_PACKED = 200
"""Maximum ratio of a .gz file's unpacked size to its size: at best 50 for JSON, 1000 for a decompression bomb."""
_HARMLESS = 16 * MiB
"""Bytes to which any .gz file may unpack."""
OF_HUGGINGFACE = (".csv", ".tsv", ".parquet", ".json")
"""Files that the reader `huggingface` reads."""
_ESCAPED_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")


class JsonLines(RecordReader):
    """One task a line, from a .jsonl or .jsonl.gz file.

    ``id``, ``query``, ``answer`` and ``messages`` name the fields of a record, also nested ones
    (``extra.answer``); all other fields become the task's metadata.
    """

    name = "jsonl"

    path: Path = Field(description="The file; a `.gz` file is unpacked while reading.")
    max_line: int = Field(LONGEST // MiB, ge=1, description="Maximum MiB of a line.")

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """(file:line, line) of each line that is not empty."""
        for number, line in enumerate(read_lines(self.path, most=self.max_line * MiB), start=1):
            if line.strip():
                yield f"{self.path}:{number}", line

    def record(self, entry: Any, place: str) -> dict[str, Any]:
        """The line's JSON object. Raises ConfigError also for a text that UTF-8 cannot encode."""
        remedy = "Fix the line or set `on_error: skip`."
        if too_long(entry, self.max_line * MiB):
            raise ConfigError(
                f"{place}: the line is longer than {self.max_line} MiB. Raise the reader's `max_line` or set `on_error: skip`."
            )
        suffix = self.path.with_suffix("").suffix if self.path.suffix == ".gz" else self.path.suffix
        if suffix in OF_HUGGINGFACE:
            remedy = f"The reader huggingface reads {suffix[1:]}: task.reader: {{type: huggingface, path: {self.path}}}."
        record = parse_line(entry, place, remedy, self.max_line * MiB)
        if _ESCAPED_HALF.search(entry) and (half := _HALF.search(json.dumps(record, ensure_ascii=False))):
            raise ConfigError(
                f"{place}: \\u{ord(half[0]):04x} is half of a surrogate pair, which is not a character. {remedy}"
            )
        return record


def read_lines(path: Path, field: str = "path", most: int = LONGEST) -> Iterator[bytes]:
    """Lines as bytes, split at newlines only: JSON strings may contain other Unicode line ends. Only the beginning of a
    line that is `too_long` for ``most`` bytes is yielded; the rest is skipped without loading it. Raises ConfigError
    for a file that cannot be read, with the reader's ``field`` that names it."""
    try:
        packed = path.suffix == ".gz"
        with cast(BinaryIO, gzip.open(path)) if packed else path.open("rb") as file:
            yield from _lines(file, path, most, packed)
    except FileNotFoundError:
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, beside)
        raise ConfigError(f"{path}: no such file{hint}. Check the reader's `{field}`.") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ConfigError(f"{path}: broken gzip file ({error}). Pack it again.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None


def too_long(line: bytes, most: int) -> bool:
    """Whether `read_lines` yielded only the beginning of this line."""
    return len(line) > most and not line.endswith(b"\n")


def _lines(file: BinaryIO, path: Path, most: int, packed: bool) -> Iterator[bytes]:
    """Raises ConfigError if a .gz file expands far more than real data would (a decompression bomb)."""
    allowed = max(_HARMLESS, _MOST_PACKED * path.stat().st_size) if packed else math.inf
    whole, passed = True, 0
    while part := file.readline(most + 1 if whole else MiB):
        if whole:
            yield part
        whole = part.endswith(b"\n")
        passed += len(part)
        if passed > allowed:
            raise ConfigError(
                f"{path}: unpacks to more than {_MOST_PACKED} times its size. If that is intended, unpack it and name the result."
            )


class _Twice(Exception):
    """A key occurs twice in an object."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice(next(key for n, (key, _) in enumerate(pairs) if key in dict(pairs[:n])))
    return found


def parse_line(line: bytes, place: str, remedy: str, most: int = LONGEST) -> dict[str, Any]:
    """A line as a JSON object. Raises ConfigError that begins with the place and ends with the remedy."""
    if too_long(line, most):
        raise ConfigError(f"{place}: the line is longer than {most // MiB} MiB. {remedy}")
    try:
        record = json.loads(line.decode("utf-8-sig"), object_pairs_hook=_once)
    except _Twice as twice:
        raise ConfigError(f"{place}: the key {twice.args[0]!r} occurs twice. {remedy}") from None
    except UnicodeDecodeError as error:
        if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            remedy = "The file is UTF-16: save it as UTF-8."
        raise ConfigError(
            f"{place}: not UTF-8 text ({error.reason} at byte {error.start + 1}). {remedy}"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: not JSON ({error.msg} at column {error.colno}). {remedy}") from None
    except (ValueError, RecursionError) as error:
        # Numbers with thousands of digits, nesting that is too deep.
        raise ConfigError(f"{place}: not JSON that can be read ({error}). {remedy}") from None
    if not isinstance(record, dict):
        raise ConfigError(
            f"{place}: {kind_of(record)}, not a JSON object. Each line must be one {{…}}. {remedy}"
        )
    return record
