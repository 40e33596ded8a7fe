"""Tasks from a file with one JSON object a line.

A fault in the data is an error with file and line unless the job says otherwise: a training set that
shrinks in silence is worse than one that does not load.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet import ConfigError
from ajet_readers.records import RecordReader, kind_of


class JsonLines(RecordReader):
    """One task a line, from a .jsonl or .jsonl.gz file.

    ``id``, ``query``, ``answer`` and ``messages`` name the fields of a record, also nested ones
    (``extra.answer``); whatever else it holds becomes the task's metadata.
    """

    name = "jsonl"

    path: Path = Field(description="The file; `.gz` is unpacked while reading.")

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """(file:line, line) of each line that is not empty."""
        for number, line in enumerate(read_lines(self.path), start=1):
            if line.strip():
                yield f"{self.path}:{number}", line

    def record(self, entry: Any, place: str) -> dict[str, Any]:
        """The line's JSON object."""
        return parse_line(entry, place, "Fix the line or set `on_error: skip`.")


def read_lines(path: Path, field: str = "path") -> Iterator[bytes]:
    """Lines as bytes, split at newlines only: JSON strings may hold other Unicode line ends. Raises
    ConfigError for a file that cannot be read, with the reader's ``field`` that names it."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Check the reader's `{field}`.") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise ConfigError(f"{path}: broken gzip file ({error}). Pack it again.") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error}).") from None


def parse_line(line: bytes, place: str, remedy: str) -> dict[str, Any]:
    """A line as a JSON object. Raises ConfigError that begins with the place and ends with the remedy."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{place}: not UTF-8 text ({error.reason} at byte {error.start + 1}). {remedy}"
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: not JSON ({error.msg} at column {error.colno}). {remedy}") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, nesting without end
        raise ConfigError(f"{place}: not JSON that can be read ({error}). {remedy}") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{place}: {kind_of(record)}, not a JSON object. Each line must be one {{…}}.")
    return record
