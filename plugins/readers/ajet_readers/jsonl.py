"""Tasks from a file with one JSON object a line.

A fault in the data is an error with file and line, never a skipped record: a training set that
shrinks in silence is worse than one that does not load.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet import ConfigError, Reader, Task
from ajet.reader import content_id


class JsonLines(Reader):
    """One task a line, from a .jsonl or .jsonl.gz file.

    ``id``, ``query``, ``answer`` and ``messages`` name the fields of a record; whatever else it holds
    becomes the task's metadata, with the answer under ``metadata["answer"]``. A record may lack a field
    that keeps its usual name, but not one that the job names itself.
    """

    name = "jsonl"

    path: Path = Field(description="The file; `.gz` is unpacked while reading.")
    id: str = Field(default="id", description="Field with the task's id; made from the content where absent.")
    query: str = Field(default="query", description="Field with the question.")
    answer: str | None = Field(
        default="answer", description="Field with the expected answer; null: none is mapped."
    )
    messages: str = Field(default="messages", description="Field with the initial chat messages.")
    limit: int | None = Field(default=None, ge=1, description="Read only the first so many tasks.")

    def tasks(self) -> Iterator[Task]:
        """Yield the tasks in the file's order. Raises ConfigError with file and line where it is bad."""
        return islice(self._all_tasks(), self.limit)

    def _all_tasks(self) -> Iterator[Task]:
        for number, line in enumerate(self._lines(), start=1):
            if line.strip():
                where = f"{self.path}:{number}"
                yield self._task(_parse(line, where), where)

    def _lines(self) -> Iterator[bytes]:
        """Lines as bytes, split at newlines only: JSON strings may hold other Unicode line ends."""
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb") as file:
                yield from file
        except FileNotFoundError:
            raise ConfigError(f"{self.path}: no such file. Check the reader's `path`.") from None
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise ConfigError(f"{self.path}: broken gzip file ({error}). Pack it again.") from None
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be read ({error.strerror or error}).") from None

    def _task(self, record: dict[str, Any], where: str) -> Task:
        self._require_named_fields(record, where)
        query = _text(record.get(self.query), self.query, where)
        messages = _messages(record.get(self.messages), self.messages, where)
        if not query and not messages:
            raise ConfigError(
                f"{where}: neither {self.query!r} nor {self.messages!r}; the record has {_names(record)}. "
                "Name the field with the question in the reader's `query`."
            )
        identity = _text(record.get(self.id), self.id, where) or content_id(record)
        mapped = {self.id, self.query, self.answer, self.messages}
        metadata = {name: value for name, value in record.items() if name not in mapped}
        if self.answer in record:
            metadata["answer"] = record[self.answer]
        return Task(id=identity, query=query, messages=messages, metadata=metadata)

    def _require_named_fields(self, record: Mapping[str, Any], where: str) -> None:
        """A renamed mapping (one that differs from the default) is a promise about every record."""
        for key in ("id", "query", "answer", "messages"):
            name = getattr(self, key)
            renamed = name is not None and name != type(self).model_fields[key].default
            if renamed and name not in record:
                found = _names(record)
                raise ConfigError(f"{where}: no field {name!r}, which `{key}` names; the record has {found}.")


def _parse(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start + 1}). Fix the line."
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: not JSON ({error.msg} at column {error.colno}). Fix the line.") from None
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, nesting without end
        raise ConfigError(f"{where}: not JSON that can be read ({error}). Fix the line.") from None
    if not isinstance(record, dict):
        raise ConfigError(f"{where}: {_kind(record)}, not a JSON object. Each line must be one {{…}}.")
    return record


def _text(value: Any, name: str, where: str) -> str:
    """A field that must be text; numbers are written out, null and absent are the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{where}: field {name!r} is {_kind(value)}; expected text.")


def _messages(value: Any, name: str, where: str) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in value
    ):
        return tuple(value)
    raise ConfigError(
        f'{where}: field {name!r} must be a list of messages like {{"role": "user", "content": "…"}}.'
    )


def _kind(value: Any) -> str:
    """What JSON calls a value."""
    kinds = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
    }
    return kinds.get(type(value), "null")


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, record)) or "no fields"
