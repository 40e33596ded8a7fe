"""The `huggingface` reader, on data sets that lie on this disk."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError, Task
from ajet.interfaces.reader import Reader, read_all
from ajet_readers import HuggingFace

pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left in the user's cache, nothing is asked of the hub."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


ROWS = [{"question": f"{i} + 1?", "answer": f"think\n#### {i + 1}", "level": i % 2} for i in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Training rows as Parquet, test rows as Parquet."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(ROWS[:4]), tmp_path / "train.parquet")
    pq.write_table(pa.Table.from_pylist(ROWS[4:]), tmp_path / "test.parquet")
    return tmp_path


def read(path: Path, **fields: Any) -> list[Task]:
    return read_all(HuggingFace(path=str(path), query="question", **fields), "task.reader")


def fault(path: Any, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        read(path, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_row_is_a_task_with_an_id_made_from_its_content(folder: Path) -> None:
    tasks = read(folder, answer_pattern=r"#### (.+)")
    assert [(t.query, t.metadata) for t in tasks[:2]] == [
        ("0 + 1?", {"answer": "1", "level": 0}),
        ("1 + 1?", {"answer": "2", "level": 1}),
    ]
    assert len({t.id for t in tasks}) == 4
    assert [t.id for t in read(folder)] == [t.id for t in tasks]


def test_the_files_of_a_folder_are_its_splits(folder: Path) -> None:
    assert [t.query for t in read(folder, split="test")] == ["4 + 1?", "5 + 1?"]
    assert len(read(folder, split="train[1:3]")) == 2


def test_rows_can_be_streamed(folder: Path) -> None:
    assert read(folder, streaming=True) == read(folder)


def test_a_folder_of_json_files(tmp_path: Path) -> None:
    for split, rows in [("train", ROWS[:4]), ("test", ROWS[4:])]:
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [t.query for t in read(tmp_path, split="test")] == ["4 + 1?", "5 + 1?"]


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".jsonl.gz"])
def test_one_file(tmp_path: Path, suffix: str) -> None:
    import datasets

    path = tmp_path / f"rows{suffix}"
    rows = datasets.Dataset.from_list(ROWS)
    write = {".parquet": rows.to_parquet, ".jsonl": rows.to_json, ".csv": rows.to_csv}
    if suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in ROWS).encode()))
    else:
        write[suffix](path)
    assert [t.query for t in read(path)] == [row["question"] for row in ROWS]


def test_what_json_has_no_form_for_is_text_or_an_error_that_names_the_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"question": "q", "on": datetime(2026, 1, 2, 3), "price": Decimal("1.50"), "at": [date(2026, 1, 2)]}
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([{**row, "picture": b"\x89PNG"}]), path)
    assert fault(path).startswith(
        f"{path}[train] row 0: column 'picture' contains bytes, which a task cannot contain."
    )
    for streaming in (False, True):
        [task] = read(path, columns=list(row), streaming=streaming)
        assert task.metadata == {"on": "2026-01-02T03:00:00", "price": "1.50", "at": ["2026-01-02"]}
    assert "'colour'" in fault(path, columns=["question", "colour"])


def test_what_save_to_disk_wrote(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    rows.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "several")
    assert read(tmp_path / "one") == read(tmp_path / "several")
    assert "no split 'test'; it has 'train'." in fault(tmp_path / "several", split="test")


def test_a_missing_column_is_named_with_its_row(folder: Path) -> None:
    place = f"{folder}[train] row 0"
    assert fault(folder, answer="solution").startswith(f"{place}: no field 'solution', which `answer` names")


def test_an_unknown_split_names_those_that_are_there(folder: Path) -> None:
    message = fault(folder, split="validation")
    assert message.startswith(f"{folder}[validation]: ") and "train" in message and "test" in message


def test_an_empty_split_is_an_error(folder: Path) -> None:
    assert "corresponds to no data" in fault(folder, split="train[:0]")
    (folder / "empty.csv").write_text("question,answer\n")
    assert "corresponds to no data" in fault(folder / "empty.csv")
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "empty.parquet"
    pq.write_table(pa.table({"question": pa.array([], pa.string())}), path)
    assert fault(path) == f"{path}[train]: it is empty: its Parquet file contains no rows."


def test_a_path_that_is_neither_here_nor_on_the_hub(tmp_path: Path) -> None:
    assert fault("nobody/nothing").startswith("nobody/nothing[train]: ")
    for path in ("./nothing", str(tmp_path / "nothing")):
        assert fault(path) == f"{path}: no such file or folder. Check the reader's `path`."


def test_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(b"no parquet")
    assert fault(path).startswith(f"{path}[train]: ")
    (tmp_path / "rows.xyz").write_text("?")
    assert ".xyz is not a format of `huggingface`" in fault(tmp_path / "rows.xyz")


@pytest.mark.whole
def test_without_the_library_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "from ajet_readers import HuggingFace\n"
        "try: list(HuggingFace(path='x/y').tasks())\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert out.stdout.strip() == (
        "ConfigError datasets is not installed; it comes with pip install 'ajet-plugin-readers[huggingface]'."
    )


def test_in_a_job_a_relative_folder_belongs_to_the_job_and_a_hub_id_stays(folder: Path) -> None:
    from ajet.job.config import Layers
    from ajet.job.parts import JobParts, build_plugin

    (folder / "sub").mkdir()
    for path, expected in [(".", str(folder)), ("openai/gsm8k", "openai/gsm8k")]:
        layers = Layers()
        spec = {"type": "huggingface", "path": path}
        layers.add({"task": {"reader": spec}}, "job.yaml", folder)
        reader = build_plugin(layers, Reader, spec, "task.reader")
        assert isinstance(reader, HuggingFace) and reader.path == expected
        task = JobParts(layers).job().task
        assert task and task.reader["path"] == expected


CELLS = ["007", "2", "", "True", "NA", "null", "2024-03-05", "2024-03-05T10:00:00Z", "1e3"]


@pytest.mark.parametrize(
    "name",
    [
        "rows.csv",
        "train.csv",
        "rows.jsonl",
        "rows.json",
        "rows.csv.gz",
        "rows.tsv",
        "data/train.csv",
        "train/a.jsonl",
        "any.csv",
    ],
)
def test_answers_of_text_files_are_what_stands_there(tmp_path: Path, name: str) -> None:
    answers: list[Any] = CELLS if "sv" in name else [*CELLS, 1, 2.5, True]
    rows = [{"id": str(i), "query": "q", "answer": answer} for i, answer in enumerate(answers)]
    if "sv" in name:
        text = "id,query,answer\r\n" + "".join(f"{r['id']},q,{r['answer']}\r\n" for r in rows)
    else:
        text = "".join(f"{json.dumps(row)}\n" for row in rows) if name == "rows.jsonl" else json.dumps(rows)
    if "tsv" in name:
        text = text.replace(",", "\t")
    data = text.encode("utf-8-sig")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    reader = HuggingFace(path=str(tmp_path / name if name.startswith("rows") else tmp_path))
    found = [task.metadata["answer"] for task in reader.tasks()]
    assert found == answers and list(map(type, found)) == list(map(type, answers))


def test_a_column_that_is_named_twice_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,query,answer,answer\n1,q,5,6\n")
    with pytest.raises(ConfigError, match=r"a\.csv: the first line names 'answer' twice"):
        list(HuggingFace(path=str(tmp_path / "a.csv")).tasks())


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.csv", 'query,answer\n"open,1\nb,2\nc,3\n', 4),
        ("a.tsv", 'query\tanswer\n"Hi" he said\t1\nb\t2\n', 2),
    ],
)
def test_a_quote_without_its_end_takes_no_rows_into_its_cell(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=rf"{name}: .* near line {line}\)"):
        list(HuggingFace(path=str(tmp_path / name)).tasks())


def test_a_cell_may_be_as_long_as_a_book(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'query,answer\n"{"x" * 200_000}",1\n')
    (task,) = HuggingFace(path=str(tmp_path / "a.csv")).tasks()
    assert len(task.query) == 200_000


def test_half_of_a_surrogate_pair_is_named_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"query": "a"}, {"query": "caf\\ud83d"}]')
    with pytest.raises(ConfigError, match=r"row 1: column 'query': '\\ud83d' is half of a surrogate pair"):
        list(HuggingFace(path=str(tmp_path / "a.json")).tasks())
