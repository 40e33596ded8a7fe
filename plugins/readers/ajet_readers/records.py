"""Records of named fields as tasks: the base of readers of files and data sets."""

from __future__ import annotations

import logging
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import Field, field_validator

from ajet import ConfigError, Task
from ajet.interfaces.reader import SelectingReader, beginning, content_id, value_at

log = logging.getLogger("ajet")


class RecordReader(SelectingReader):
    """Base of readers whose source holds records.

    ``id``, ``query``, ``answer`` and ``messages`` name the fields of a record, also nested ones
    (``extra.answer``); all other fields become the task's metadata, with the answer under ``metadata["answer"]``.
    A record may lack a field that has its default name, but not one that the job names. A task needs a question or
    messages, unless ``query`` is null.
    """

    id: str | None = Field(
        default="id",
        description="Field with the task's id; null, or without the field: the id is a hash of the content.",
    )
    query: str | None = Field(
        default="query", description="Field with the question; null: no field, and no question is needed."
    )
    answer: str | None = Field(
        default="answer", description="Field with the expected answer; null: no field."
    )
    answer_pattern: str | None = Field(
        default=None,
        description="Regular expression whose match (its group, if it has one) is the answer in the field.",
    )
    messages: str | None = Field(
        default="messages", description="Field with the initial chat messages; null: no field."
    )
    on_error: Literal["stop", "skip"] = Field(
        default="stop", description="A bad record stops the job, or is skipped, counted and reported."
    )

    @field_validator("answer_pattern")
    @classmethod
    def _compiles(cls, pattern: str | None) -> str | None:
        try:
            groups = re.compile(pattern or "").groups
        except re.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        if groups > 1:
            raise ValueError(f"has {groups} groups; mark one, the answer")
        return pattern

    @abstractmethod
    def entries(self) -> Iterator[tuple[str, Any]]:
        """Yield (place, record in the source's own form). Raise ConfigError if the source cannot be read."""

    def record(self, entry: Any, place: str) -> dict[str, Any]:
        """An entry as a record. Raises ConfigError, beginning with the place, if the entry is not a record."""
        return dict(entry)

    def source(self) -> Iterator[Task]:
        """The records as tasks. Raises ConfigError with the place of a bad one, unless ``on_error: skip``."""
        skipped, first = 0, ""
        try:
            for place, entry in self.entries():
                try:
                    task = self._task(self.record(entry, place), place)
                except ConfigError as error:
                    if self.on_error == "stop":
                        raise
                    skipped, first = skipped + 1, first or str(error)
                    continue
                yield task
        finally:
            if skipped:
                log.warning("reader %s: %d bad records skipped; the first: %s", self.name, skipped, first)

    def describe_duplicate(self, first: Task, second: Task) -> str:
        """See `Reader.describe_duplicate`. Reads the source again to name both places."""
        given, places = True, list[str]()
        for place, entry in self.entries():
            try:
                record = self.record(entry, place)
                task = self._task(record, place)
            except ConfigError:  # with `on_error: skip`
                continue
            if task.id == first.id:
                given = bool(_field(record, self.id))
                places.append(f"{place} {beginning(task)}")
        if len(places) < 2:
            return super().describe_duplicate(first, second)
        what = (
            f"duplicate task id {first.id!r}" if given else f"duplicate task (no {self.id!r}, equal content)"
        )
        more = f" (and {len(places) - 2} more)" if len(places) > 2 else ""
        return f"{what}: {places[0]} and {places[1]}{more}"

    def _task(self, record: dict[str, Any], place: str) -> Task:
        self._require_named_fields(record, place)
        query = _text(_field(record, self.query), self.query, place)
        messages = _messages(_field(record, self.messages), self.messages, place)
        if not query and not messages and self.query is not None:
            raise ConfigError(
                f"{place}: neither {self.query!r} nor {self.messages!r}; the record has {_names(record)}. "
                "Name the field with the question in the reader's `query`."
            )
        identity = _text(_field(record, self.id), self.id, place) or content_id(record)
        mapped = {self.id, self.query, self.answer, self.messages}
        metadata = {name: value for name, value in record.items() if name not in mapped}
        answer = _field(record, self.answer)
        if answer is not None:
            metadata["answer"] = self._answer(answer, place)
        elif self.answer in record and record[self.answer] is None:
            metadata["answer"] = None
        return Task(id=identity, query=query, messages=messages, metadata=metadata)

    def _answer(self, value: Any, place: str) -> Any:
        if self.answer_pattern is None:
            return value
        match = re.search(self.answer_pattern, _text(value, str(self.answer), place))
        if match is None:
            raise ConfigError(
                f"{place}: field {self.answer!r} does not match answer_pattern {self.answer_pattern!r}: {str(value)[-60:]!r}."
            )
        return (match[1] if match.re.groups else match[0]).strip()

    def _require_named_fields(self, record: Mapping[str, Any], place: str) -> None:
        """Every record must have the fields that the job names itself, with a name that is not the default."""
        for key in ("id", "query", "answer", "messages"):
            name = getattr(self, key)
            renamed = name is not None and name != type(self).model_fields[key].default
            if renamed and value_at(record, name, _ABSENT) is _ABSENT:
                fields = _names(record)
                raise ConfigError(
                    f"{place}: no field {name!r}, which `{key}` names; the record has {fields}."
                )


_ABSENT = object()


def _field(record: Mapping[str, Any], name: str | None) -> Any:
    """The value of a field that the job may do without; None if it is missing, or NaN, which pandas writes for a missing value."""
    value = None if name is None else value_at(record, name)
    return None if isinstance(value, float) and value != value else value


def kind_of(value: Any) -> str:
    """A value's JSON type, in words."""
    kinds = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "an object",
        type(None): "null",
    }
    return kinds.get(type(value), f"a {type(value).__name__}")


def _text(value: Any, name: str | None, place: str) -> str:
    """The text of a field. A number becomes text; null or a missing field is the empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{place}: field {name!r} is {kind_of(value)}; expected text.")


def _messages(value: Any, name: str | None, place: str) -> tuple[Mapping[str, Any], ...]:
    if value is None:
        return ()
    if isinstance(value, list) and all(
        isinstance(item, dict) and isinstance(item.get("role"), str) for item in value
    ):
        return tuple(value)
    raise ConfigError(
        f'{place}: field {name!r} must be a list of messages like {{"role": "user", "content": "…"}}.'
    )


def _names(record: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, record)) or "no fields"
