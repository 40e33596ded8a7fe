"""YAML files: every fault is one line with its place, and no small file takes much memory."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ajet import ConfigError
from ajet.job.config import parse_set, read_job_file
from ajet.services.chat_models import read_script
from ajet.utils.yaml_file import read_yaml
from ajet_judges.rubric import read_rubric

LAUGHS = "a: &a [x]\n" + "".join(f"{n}: &{n} [*{m}{f', *{m}' * 9}]\n" for m, n in pairwise("abcdefghi"))
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{n}: &{n} {{<<: [*{m}{f', *{m}' * 9}]}}\n" for m, n in pairwise("abcdefghi")
)


def fault(folder: Path, text: str | bytes, read: Any = read_yaml) -> str:
    path = folder / "file.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(f"{path}")
    return message.removeprefix(f"{path}")


@pytest.mark.parametrize("read", [read_yaml, read_job_file, read_script, read_rubric])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x: 1\na: &a [*a]\n", ":2: *a contains itself. Write the value in full."),
        ("a: &a\n  b: {c: [*a]}\n", ":2: *a contains itself. Write the value in full."),
        ("\na: " + "[" * 20_000, ":2: nested deeper than 100 levels. Make it flatter."),
        (
            "\n".join(" " * n + "a:" for n in range(200)),
            ":101: nested deeper than 100 levels. Make it flatter.",
        ),
        (LAUGHS, ":7: more than 1,000,000 values, including those that aliases repeat. Use fewer."),
        (MERGES, ":7: more than 1,000,000 values, including those that aliases repeat. Use fewer."),
    ],
    ids=["itself", "itself, further down", "brackets", "indents", "laughs", "merges"],
)
def test_what_would_take_all_memory_is_refused_with_its_line(
    tmp_path: Path, read: Any, text: str, said: str
) -> None:
    assert fault(tmp_path, text, read) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [\n", ":2: not YAML (expected the node content, but found '<stream end>'). Fix the line."),
        ("a: *b\n", ":1: not YAML (found undefined alias 'b'). Fix the line."),
        ("a: 2025-13-01\n", ": not YAML that can be read (month must be in 1..12)."),
        ("a: " + "9" * 5000, ": not YAML that can be read (Exceeds the limit"),
        (
            "a: \0\n",
            ": not YAML that can be read (unacceptable character #x0000: special characters are not allowed",
        ),
        ("a: 1\nb: {c: [a, a], a: a}\n'a': 2\n", ":3: a stands twice in one mapping. Remove one of them."),
        (b"a: caf\xe9\n", ": not UTF-8 text (invalid continuation byte at byte 7). Save it as UTF-8."),
    ],
    ids=["cut off", "no anchor", "no month", "digits", "nul", "doubled", "not UTF-8"],
)
def test_every_other_fault_is_one_line_too(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert fault(tmp_path, text).startswith(said)


def test_aliases_that_repeat_a_little_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("a: &a {x: 1}\nb: [*a, *a]\nc: {<<: *a, y: 2}\n")
    assert read_yaml(path) == {"a": {"x": 1}, "b": [{"x": 1}] * 2, "c": {"x": 1, "y": 2}}


def test_a_set_value_that_is_no_yaml_is_text() -> None:
    assert parse_set("judge.criteria=*") == ("judge.criteria", "*")
    assert parse_set("a=[1, 2]") == ("a", [1, 2])
