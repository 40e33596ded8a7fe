"""Tasks from a data set: on the Hugging Face hub, in a folder, or in one file."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import Field

from ajet import ConfigError
from ajet.interfaces.base import PathOrName
from ajet_readers.extras import needs
from ajet_readers.jsonl import parse_line, read_lines
from ajet_readers.records import RecordReader

_BUILDERS = {".parquet": "parquet", ".arrow": "arrow"}
_FORMATS = (*_BUILDERS, ".json", ".jsonl", ".csv", ".tsv")


class HuggingFace(RecordReader):
    """Records of a data set, through the library `datasets`.

    ``path`` is a data set's id on the hub, a folder, or one Parquet, JSON, CSV, TSV or Arrow file. A folder holds what
    ``save_to_disk`` wrote, files named by their splits (train.parquet, test.jsonl, …), or files in the other ways that the library
    knows. CSV and JSON files on this machine are read as they stand there: cells of CSV are text, 007 as well as NA. Dates of other
    files become text. Values that JSON cannot represent (images, bytes) are an error, unless ``columns`` leaves them out.
    """

    name = "huggingface"

    path: PathOrName = Field(
        description="Id on the hub, a folder, or a .parquet, .json(l), .csv, .tsv, .arrow file."
    )
    subset: str | None = Field(None, description="Configuration of the data set, if it has several.")
    split: str = Field("train", description="train, test, …; also slices such as train[:1000].")
    columns: tuple[str, ...] | None = Field(None, description="Read only these columns; default: all.")
    revision: str | None = Field(None, description="Commit, tag or branch on the hub.")
    streaming: bool = Field(
        False, description="Read during the download, without storing the data set on disk."
    )

    def entries(self) -> Iterator[tuple[str, Any]]:
        """(path[split] row n, row) of each row."""
        try:
            rows = self._load()
            if self.columns is not None and isinstance(rows, list):
                rows = [{name: row[name] for name in self.columns} for row in rows]
            elif self.columns is not None:
                rows = rows.select_columns(list(self.columns))
            for number, row in enumerate(rows):
                yield f"{self.path}[{self.split}] row {number}", row
        except ConfigError:
            raise
        except GeneratorExit:
            raise
        except Exception as error:  # the library raises a dozen types without a common base
            remedy = ""
            if isinstance(error, ConnectionError):
                remedy = (
                    f". Without the hub, put the data set's files into the folder {self.path} beside the job, or set the reader's "
                    "`path` to a folder."
                )
            raise ConfigError(f"{self._place()}: {_reason(error)}{remedy}") from error

    def record(self, entry: Any, place: str) -> dict[str, Any]:
        """The row as JSON values: tasks are written to journals and sent to other processes."""
        return {name: _plain(value, f"{place}: column {name!r}") for name, value in entry.items()}

    def _load(self) -> Any:
        datasets = needs("datasets", "huggingface")
        local = Path(self.path)
        if not local.exists() and (local.is_absolute() or self.path.startswith(".")):
            raise ConfigError(f"{self.path}: no such file or folder. Check the reader's `path`.")
        if (local / "dataset_dict.json").is_file() or (local / "state.json").is_file():
            saved = datasets.load_from_disk(str(local))
            if not isinstance(saved, dict):
                return saved
            if self.split not in saved:
                raise ConfigError(
                    f"{self.path}: no split {self.split!r}; it has {', '.join(map(repr, saved))}. Set the reader's `split`."
                )
            return saved[self.split]
        name = self.split.partition("[")[0]
        texts = text_files(local, name)
        if not texts and local.is_dir():
            listed = datasets.load_dataset_builder(self.path, self.subset).config.data_files or {}
            texts = [Path(file) for file in listed.get(name, ())]
        if texts and all(map(_is_text, texts)):
            rows = [row for file in texts for row in rows_of(file)]
            parts = datasets.ReadInstruction.from_spec(self.split).to_absolute({name: len(rows)})
            chosen = [row for part in parts for row in rows[part.from_ : part.to]]
            if not chosen:
                raise ConfigError(f"{self._place()}: the split corresponds to no data.")
            return chosen
        if local.is_file():
            builder = _BUILDERS.get(local.suffix)
            if builder is None:
                raise ConfigError(
                    f"{self.path}: {local.suffix or 'no suffix'} is not a format of `huggingface`; it reads {', '.join(_FORMATS)}."
                )
            files: dict[str, Any] = {
                "path": builder,
                "data_files": {name: str(local)},
            }
        else:
            files = {"path": self.path, "name": self.subset, "revision": self.revision}
        return datasets.load_dataset(**files, split=self.split, streaming=self.streaming)

    def _place(self) -> str:
        return (
            f"{self.path}[{self.split}]"
            if self.subset is None
            else f"{self.path}/{self.subset}[{self.split}]"
        )


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"{place}: {error.object[error.start]!r} is half of a surrogate pair, no character."
            ) from None
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item, place) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, place) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    raise ConfigError(
        f"{place} contains {type(value).__name__}, which a task cannot contain. Name the columns to read in the reader's `columns`."
    )


def _reason(error: Exception) -> str:
    """What went wrong, in one line, with the cause if the library wraps one."""
    text = " ".join(str(error).split())
    if error.__cause__ is not None:
        text = f"{text}: {' '.join(str(error.__cause__).split())}"
    if re.search(r"batch_?size must be greater than (0|zero)", text, re.IGNORECASE):
        return "it is empty: its Parquet file contains no rows."
    return f"{type(error).__name__}: {text[:400]}"


# Rows of CSV and JSON files as they stand there: the library `datasets` would take 007 for the number 7, and a date for a time.

_TEXT = re.compile(r"\.([ct]sv|jsonl?)(\.gz)?", re.IGNORECASE)


def text_files(path: Path, split: str) -> list[Path]:
    """``path``, if it is a CSV or JSON file; such files of a folder that are named by the split."""
    if path.is_file():
        return [path] if _is_text(path) else []
    if not path.is_dir():
        return []
    named = re.compile(rf"{re.escape(split)}([-_.].*)?{_TEXT.pattern}", re.IGNORECASE)
    return sorted(file for file in path.iterdir() if named.fullmatch(file.name))


def _is_text(file: Path) -> bool:
    return any(_TEXT.fullmatch(suffix) for suffix in ("".join(file.suffixes[-2:]), file.suffix))


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Each cell of a CSV file is text; JSON, a list or one object a line, keeps its types. Raises ConfigError with file and line."""
    if kinds := {".csv", ".tsv"}.intersection(suffix.lower() for suffix in file.suffixes[-2:]):
        return _csv(file, "\t" if ".tsv" in kinds else ",")
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


def _csv(file: Path, between: str) -> list[dict[str, Any]]:
    try:
        packed = file.read_bytes()
        text = (gzip.decompress(packed) if file.suffix == ".gz" else packed).decode("utf-8-sig")
        csv.field_size_limit(max(csv.field_size_limit(), len(text)))
        # Strict: otherwise a quote without its end takes all rows behind it into its cell.
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=between, strict=True)
        rows, names = list(reader), list(reader.fieldnames or ())
    except (OSError, ValueError, EOFError, csv.Error) as error:
        near = f" near line {reader.reader.line_num}" if isinstance(error, csv.Error) else ""
        raise ConfigError(f"{file}: no CSV file in UTF-8 ({error}{near}). Save it again.") from None
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{file}: the first line names {twice!r} twice. Rename one of the columns.")
    for number, row in enumerate(rows):
        if None in row:
            raise ConfigError(f"{file}: row {number} has more cells than the first line names. Fix the row.")
    return [{name: "" if cell is None else cell for name, cell in row.items()} for row in rows]
