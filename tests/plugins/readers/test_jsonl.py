"""The `jsonl` reader: one task a line, and every fault named with its file and line."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ajet import ConfigError, Task
from ajet.interfaces.reader import content_id, is_held_out, read_all
from ajet_readers import JsonLines


def write(folder: Path, *lines: Any) -> Path:
    """A file with these lines; anything but text is written as JSON."""
    path = folder / "tasks.jsonl"
    path.write_text(
        "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines), encoding="utf-8"
    )
    return path


def read(path: Path, **fields: Any) -> list[Task]:
    return list(JsonLines(path=path, **fields).tasks())


def fault(path: Path, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_line_is_a_task_and_unmapped_fields_are_metadata(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "query": "1 + 1?", "answer": "2", "difficulty": 3})
    assert read(path) == [Task(id="a", query="1 + 1?", metadata={"answer": "2", "difficulty": 3})]


def test_tasks_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, *({"id": str(i), "query": "q"} for i in (3, 1, 2)))
    assert [task.id for task in read(path)] == ["3", "1", "2"]


def test_fields_can_have_other_names(tmp_path: Path) -> None:
    path = write(
        tmp_path, {"uid": 7, "problem": "1 + 1?", "solution": 2, "chat": [{"role": "user", "content": "hi"}]}
    )
    [task] = read(path, id="uid", query="problem", answer="solution", messages="chat")
    assert task == Task("7", "1 + 1?", ({"role": "user", "content": "hi"},), {"answer": 2})


def test_a_mapped_answer_wins_over_a_field_that_is_called_answer(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "q", "answer": "a long derivation", "final": "2"})
    [task] = read(path, answer="final")
    assert task.metadata == {"answer": "2"}


def test_without_an_answer_mapping_the_record_stays_as_it_is(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "query": "q", "label": "x"})
    [task] = read(path, answer=None)
    assert task.metadata == {"label": "x"}


def test_without_mappings_the_metadata_are_the_record(tmp_path: Path) -> None:
    record = {"id": 7, "prompt": "1 + 1?", "answer": 2, "messages": "none"}
    (task,) = read(write(tmp_path, record), id=None, query=None, answer=None, messages=None)
    assert task == Task(id=content_id(record), metadata=record)


def test_one_field_may_be_mapped_twice(tmp_path: Path) -> None:
    path = write(tmp_path, {"text": "repeat me"})
    [task] = read(path, id="text", query="text", answer="text")
    assert (task.id, task.query, task.metadata) == ("repeat me", "repeat me", {"answer": "repeat me"})


def test_messages_alone_make_a_task(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "messages": [{"role": "user", "content": "hi"}]})
    [task] = read(path)
    assert task.query == "" and task.messages == ({"role": "user", "content": "hi"},)


def test_a_missing_id_is_made_from_the_content(tmp_path: Path) -> None:
    first = write(tmp_path, {"query": "q", "answer": "1"}, {"query": "r", "answer": "2"})
    ids = [task.id for task in read(first)]
    assert len(set(ids)) == 2 and all(len(i) == 12 for i in ids)
    # The same record has the same id in another file, at another line, with its keys in another order.
    again = write(tmp_path, {"query": "x"}, {"answer": "1", "query": "q"})
    assert read(again)[1].id == ids[0]


def test_a_repeated_record_is_a_duplicate(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "q"}, {"query": "r"}, {"query": "q"})
    with pytest.raises(ConfigError, match="duplicate task"):
        read_all(JsonLines(path=path), "task.reader")


def test_the_error_about_a_repeated_record_names_both_lines_and_no_hash(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "q" * 90}, {"query": "r"}, {"query": "q" * 90}, {"query": "q" * 90})
    begins = f"'{'q' * 59}…'"
    what = f"duplicate task (no 'id', equal content): {path}:1 {begins} and {path}:3 {begins} (and 1 more)."
    with pytest.raises(ConfigError, match=re.escape(what)):
        read_all(JsonLines(path=path, shuffle=3), "task.reader")


def test_the_lines_are_right_where_bad_records_are_skipped_and_ids_are_nested(tmp_path: Path) -> None:
    path = write(tmp_path, {"n": 1}, {"x": {"id": 7}, "query": "q"}, {"x": {"id": 7}, "query": "r"})
    with pytest.raises(ConfigError, match=re.escape(f"id '7': {path}:2 'q' and {path}:3 'r'.")):
        read_all(JsonLines(path=path, id="x.id", on_error="skip"), "task.validation")


def test_limit_reads_the_first_tasks_only(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "query": "q"}, {"id": "b", "query": "q"}, "broken")
    assert [task.id for task in read(path, limit=2)] == ["a", "b"]


def test_empty_lines_and_a_byte_order_mark_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"id": "a", "query": "q"}\r\n\r\n{"id": "b", "query": "q"}\n\n')
    assert [task.id for task in read(path)] == ["a", "b"]


def test_unicode_line_ends_inside_a_string_do_not_split_it(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": "a", "query": "one\u2028two"}')
    assert read(path)[0].query == "one\u2028two"


def test_gz_files_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a", "query": "q"}\n'))
    assert read(path) == [Task(id="a", query="q")]


def test_the_reader_can_be_sent_to_another_process(tmp_path: Path) -> None:
    reader = JsonLines(path=tmp_path / "tasks.jsonl", query="problem")
    assert pickle.loads(pickle.dumps(reader)) == reader


def test_fields_may_be_nested(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": [{"text": "1 + 1?"}], "extra": {"truth": "2", "level": 1}})
    [task] = read(path, query="prompt.0.text", answer="extra.truth")
    assert (task.query, task.metadata["answer"]) == ("1 + 1?", "2")
    assert task.metadata["extra"] == {"truth": "2", "level": 1}


def test_a_pattern_finds_the_answer_in_its_field(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "q", "answer": "so it is\n#### 1,024 "})
    assert read(path, answer_pattern=r"####\s*(.+)")[0].metadata["answer"] == "1,024"
    assert read(path, answer_pattern=r"[\d,]+")[0].metadata["answer"] == "1,024"
    assert "does not match answer_pattern" in fault(path, answer_pattern="boxed")


@pytest.mark.parametrize("pattern", ["(", "(a)(b)"])
def test_a_pattern_that_cannot_be_is_refused_at_once(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ValidationError, match="answer_pattern"):
        JsonLines(path=tmp_path, answer_pattern=pattern)


def test_bad_records_are_skipped_on_request_counted_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, {"query": "a"}, "broken", {"question": "b"}, [1], {"query": "c"})
    assert [task.query for task in read(path, on_error="skip")] == ["a", "c"]
    [line] = caplog.messages
    assert line.startswith(f"reader jsonl: 3 bad records skipped; the first: {path}:2: not JSON (")


def test_a_missing_file_is_an_error_even_when_bad_records_are_skipped(tmp_path: Path) -> None:
    assert fault(tmp_path / "none.jsonl", on_error="skip").endswith("Check the reader's `path`.")


# ------------------------------------------------------------------ bad input


def test_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    assert fault(path) == f"{path}: no such file. Check the reader's `path`."
    (tmp_path / "train.jsonl").write_text("{}\n")
    assert "trian.jsonl: no such file; did you mean 'train.jsonl'. Check" in fault(tmp_path / "trian.jsonl")


def test_a_folder_instead_of_a_file(tmp_path: Path) -> None:
    assert fault(tmp_path).startswith(f"{tmp_path}: cannot be read")


@pytest.mark.parametrize(
    "content",
    [b"no gzip at all", gzip.compress(b'{"query": "q"}\n' * 9, mtime=0)[:-12]],
    ids=["another format", "cut off"],
)
def test_a_broken_gz_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(content)
    assert fault(path).startswith(f"{path}: broken gzip file")


def test_a_broken_line_is_named_with_its_number(tmp_path: Path) -> None:
    path = write(tmp_path, *({"query": str(i)} for i in range(16)), '{"query": "q",}')
    message = fault(path)
    assert message.startswith(f"{path}:17: not JSON (")
    assert message.endswith("). Fix the line or set `on_error: skip`.")


@pytest.mark.parametrize("line", ["[" * 100_000, '{"query": ' + "9" * 5000 + "}"])
def test_json_that_no_parser_takes(tmp_path: Path, line: str) -> None:
    assert fault(write(tmp_path, line)).endswith("Fix the line or set `on_error: skip`.")


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"query": "q"}\n{"query": "caf\xe9"}\n')
    assert fault(path).startswith(f"{path}:2: not UTF-8 text (")
    path.write_text('{"query": "q"}\n', encoding="utf-16")
    assert fault(path).endswith("The file is UTF-16: save it as UTF-8.")


@pytest.mark.parametrize(
    ("line", "kind"), [("[1]", "a list"), ('"text"', "a string"), ("17", "a number"), ("null", "null")]
)
def test_a_line_that_is_no_object(tmp_path: Path, line: str, kind: str) -> None:
    path = write(tmp_path, {"query": "q"}, line)
    assert fault(path).startswith(f"{path}:2: {kind}, not a JSON object.")


@pytest.mark.parametrize("name", ["tasks.csv", "tasks.json", "tasks.csv.gz"])
def test_a_file_of_another_kind_is_told_its_reader(tmp_path: Path, name: str) -> None:
    path, text = tmp_path / name, b'[{"query": "q"}]\n' if "json" in name else b"query,answer\nq,a\n"
    path.write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    assert fault(path).endswith(f"task.reader: {{type: huggingface, path: {path}}}.")


def test_a_key_that_occurs_twice_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "q"}, '{"query": "What is 3 + 4?", "query": "What is 9 + 9?"}')
    assert fault(path).startswith(f"{path}:2: the key 'query' occurs twice.")


def test_an_answer_that_is_null_stays_as_any_other_field(tmp_path: Path) -> None:
    (task,) = read(write(tmp_path, {"query": "q", "answer": None, "gold": None}))
    assert task.metadata == {"answer": None, "gold": None}


@pytest.mark.parametrize("key", ["id", "query", "answer", "messages"])
def test_a_field_that_the_job_names_must_be_there(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, {"query": "q", "messages": [], "other": 1})
    message = fault(path, **{key: "nowhere"})
    assert (
        message
        == f"{path}:1: no field 'nowhere', which `{key}` names; the record has 'query', 'messages', 'other'."
    )


def test_neither_query_nor_messages(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "1 + 1?"})
    assert fault(path).startswith(f"{path}:1: neither 'query' nor 'messages'; the record has 'question'.")


def test_nan_is_a_missing_value_as_in_tables_of_pandas(tmp_path: Path) -> None:
    nan = float("nan")
    (task,) = read(write(tmp_path, {"id": nan, "query": "q", "answer": nan}))
    assert "answer" not in task.metadata and task.id != "nan"
    assert "neither 'query' nor 'messages'" in fault(write(tmp_path, {"query": nan}))


@pytest.mark.parametrize("value", [["a"], {"a": 1}, True])
def test_a_query_that_is_not_text(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path, {"query": value})
    assert fault(path).startswith(f"{path}:1: field 'query' is a")


@pytest.mark.parametrize("value", ["hi", [], ["hi"], [{"content": "hi"}]])
def test_messages_that_are_no_chat(tmp_path: Path, value: Any) -> None:
    path = write(tmp_path, {"messages": value})
    assert "'messages'" in fault(path)


# ------------------------------------------------------------------ hostile input

HALF = '{"id": "a", "query": "caf\\ud83d"}'


@pytest.mark.parametrize("field", ["id", "query", "answer", "further"])
def test_half_of_a_surrogate_pair_is_named_with_its_line(tmp_path: Path, field: str) -> None:
    path = write(tmp_path, {"query": "fine \U0001f642"}, {"query": "q", field: "caf\ud83d"})
    assert fault(path) == (
        f"{path}:2: \\ud83d is half of a surrogate pair, which is not a character. Fix the line or set `on_error: skip`."
    )


def test_on_error_skip_passes_over_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, {"query": "a"}, HALF, {"query": "b \U0001f642"})
    assert [task.query for task in read(path, on_error="skip")] == ["a", "b \U0001f642"]
    assert f"1 bad records skipped; the first: {path}:2: \\ud83d is half" in caplog.text


def test_readers_of_traces_may_hold_one(tmp_path: Path) -> None:
    assert len(content_id({"query": "\ud83d"})) == 12
    assert is_held_out("\ud83d", 0.999999)


def test_a_line_that_is_too_long_is_named_with_the_key_to_raise(tmp_path: Path) -> None:
    path = write(tmp_path, {"query": "a"}, {"query": "x" * (1 << 20)}, {"query": "b"})
    assert fault(path, max_line=1) == (
        f"{path}:2: the line is longer than 1 MiB. Raise the reader's `max_line` or set `on_error: skip`."
    )
    assert [task.query for task in read(path, max_line=1, on_error="skip")] == ["a", "b"]
    assert len(read(path, max_line=2)) == 3


@pytest.mark.whole
def test_a_very_long_line_is_never_loaded(tmp_path: Path) -> None:
    """The file has a hole of a quarter of a gigabyte, so that it takes no room."""
    path = write(tmp_path, {"query": "a"})
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b'{"query": "')
        file.seek(1 << 28, os.SEEK_CUR)
        file.write(b'"}\n{"query": "b"}\n')
    tracemalloc.start()
    try:
        assert [task.query for task in read(path, max_line=1, on_error="skip")] == ["a", "b"]
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        assert fault(path, max_line=1).startswith(f"{path}:2: the line is longer than 1 MiB.")
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content", [b"\n", b"x" * 1023 + b"\n", b"x"], ids=["empty lines", "lines", "one line"]
)
def test_a_bomb_of_gzip_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr("ajet_readers.jsonl._HARMLESS", 1 << 16)  # so that a small bomb will do
    path = tmp_path / "tasks.jsonl.gz"
    first = b'{"query": "a"}\n'
    path.write_bytes(gzip.compress(first + content * ((1 << 20) // len(content))))
    message = fault(path, max_line=1, on_error="skip")
    assert message.startswith(f"{path}: unpacks to more than 200 times its size.")
