"""Full-text search over messages, responses and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from . import runs

TEXTS = {
    "1.0/t/0": "The quick brown fox jumps over the lazy dog.",
    "1.0/t/1": "A lazy summer: nothing quick about it. call_tool(x) failed",
    "1.0/t/2": "机器学习模型的训练 und ÄRGER mit Übermut",
}


@pytest.fixture
def searched(own: runs.Studio, folder: Path) -> runs.Studio:
    lines = [
        runs.line(id, chats={"k": [[-1, {"role": "user", "content": text}]]}, calls=[], response="", member=n)
        for n, (id, text) in enumerate(TEXTS.items())
    ]
    runs.append(folder / "a", *lines)
    return own


def found(studio: runs.Studio, query: str) -> list[dict[str, Any]]:
    answer = studio.get("search", run="a", q=query)
    assert answer["total"] == len(answer["rows"])
    return answer["rows"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("query", "members"),
    [
        ("quick", "01"),
        ("QUICK lazy", "01"),
        ("quick fox", "0"),
        ('"lazy dog"', "0"),
        ('"dog lazy"', ""),
        ("sum", "1"),
        ('"sum"', ""),
        ("call_tool(x)", "1"),
        ("学习", "2"),
        ("模型 训练", "2"),
        ("学模", ""),
        ("ärger", "2"),
        ("arger", ""),
        ("t", "012"),
        ("OR", ""),
        ('fox NOT "', ""),
        ("fox AND dog*", ""),
        ("text:fox", ""),
    ],
)
def test_all_words_must_occur_and_a_word_also_finds_longer_ones(
    searched: runs.Studio, query: str, members: str
) -> None:
    assert sorted(row["id"][-1] for row in found(searched, query)) == list(members)


def test_a_result_shows_where_the_words_are(searched: runs.Studio) -> None:
    (row,) = found(searched, "brown lazy")
    assert (row["id"], row["where"], row["task"], row["step"]) == ("1.0/t/0", "user", "t", 1)
    start, length = row["at"]
    assert row["excerpt"][start : start + length] == "brown"


@pytest.mark.parametrize(("query", "word"), [("学习", "学习"), ("ärg", "ÄRG"), ('"call tool"', "call_tool")])
def test_the_excerpt_marks_what_the_search_found(searched: runs.Studio, query: str, word: str) -> None:
    (row,) = found(searched, query)
    start, length = row["at"]
    assert row["excerpt"][start : start + length] == word


def test_a_long_text_is_shown_around_the_words(own: runs.Studio, folder: Path) -> None:
    text = "before " * 5000 + "needle " + "after " * 5000
    runs.append(folder / "a", runs.line("1.0/t/0", response=text))
    (row,) = own.get("search", run="a", q="needle")["rows"]
    assert row["where"] == "response"
    assert len(row["excerpt"]) < 200
    assert row["excerpt"][row["at"][0] :].startswith("needle after")


def test_results_come_in_pages_latest_first(own: runs.Studio, folder: Path) -> None:
    runs.append(folder / "a", *(runs.line(f"1.0/t/{n}", member=n) for n in range(7)))
    first = own.get("search", run="a", q="hello", limit=5)
    rest = own.get("search", run="a", q="hello", limit=5, offset=5)
    assert first["total"] == rest["total"] == 7
    assert [row["id"][-1] for row in first["rows"] + rest["rows"]] == list("6543210")


def test_new_episodes_are_found_as_well(searched: runs.Studio, folder: Path) -> None:
    assert found(searched, "newcomer") == []
    runs.append(folder / "a", runs.line("2.0/t/0", response="a newcomer"))
    assert [row["id"] for row in found(searched, "newcomer")] == ["2.0/t/0"]


@pytest.mark.parametrize("query", ["", "  ", "+ -", '""'])
def test_a_search_without_a_word_is_refused(searched: runs.Studio, query: str) -> None:
    assert searched.refused("search", run="a", q=query) == (400, "q: write at least one word to search for")
