"""Tokens as text: what each adds, characters of several tokens, and text that could harm a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ajet.interfaces.progress import Silent
from ajet.reports.token_text import TokenText, visible
from ajet.runs.run_dir import keep_tokenizer
from ajet.utils.terminal import readable


@pytest.fixture
def pieces(tmp_path: Path, tokenizer: Any) -> TokenText:
    keep_tokenizer(tmp_path, tokenizer, Silent())
    return TokenText(tmp_path)


@pytest.mark.parametrize(
    "text", ["plain words", "  two\n\tlines ", "überall 漢字 👍🏽", "<|im_start|>user\n"]
)
def test_the_pieces_of_a_text_are_the_text(pieces: TokenText, tokenizer: Any, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = pieces(ids)
    assert len(found) == len(ids) and "".join(p or "" for p in found) == text


def test_a_character_of_several_tokens_is_the_last_ones(pieces: TokenText, tokenizer: Any) -> None:
    ids = tokenizer.encode("👍", add_special_tokens=False)
    assert len(ids) > 1 and pieces(ids) == [""] * (len(ids) - 1) + ["👍"]


def test_half_a_character_at_the_end_is_shown_as_such(pieces: TokenText, tokenizer: Any) -> None:
    ids = tokenizer.encode("a👍", add_special_tokens=False)[:-1]
    assert "".join(p or "" for p in pieces(ids)).startswith("a�")


def test_a_space_at_the_beginning_of_a_sentencepiece_token_is_kept(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"▁one": 0, "▁two": 1, "?": 2}, "?"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    (tmp_path / "tokenizer").mkdir()
    made.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    assert TokenText(tmp_path)([0, 1, 1]) == ["one", " two", " two"]


def test_without_a_tokenizer_there_are_no_texts_and_a_reason(tmp_path: Path) -> None:
    pieces = TokenText(tmp_path)
    assert pieces([1, 2]) == [None, None] and "tokenizer.json does not exist" in pieces.missing


def test_a_damaged_tokenizer_is_a_reason_too(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer.json").write_text("{")
    assert "tokenizer.json: " in TokenText(tmp_path).missing


def test_a_tokenizer_that_cannot_be_saved_is_noted_and_the_run_goes_on(tmp_path: Path) -> None:
    class Progress(Silent):
        said = ""

        def say(self, text: str) -> None:
            self.said = text

    class Strange:
        def save_pretrained(self, path: Path) -> None:
            raise NotImplementedError("no files")

    progress = Progress()
    keep_tokenizer(tmp_path, Strange(), progress)
    assert progress.said == "the tokenizer cannot be saved, so `ajet show` will show ids only: no files"


def test_spaces_tabs_and_newlines_are_visible() -> None:
    assert visible("a b\tc\n") == "a·b→c↵"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("\r\x07", "\\r\\x07"),
        ("\u202egnp", "\\u202egnp"),
        ("\ud83d", "\\ud83d"),
        ("ü 漢 👍\n\t", "ü 漢 👍\n\t"),
    ],
)
def test_what_could_move_a_cursor_or_turn_text_is_an_escape(text: str, shown: str) -> None:
    assert readable(text) == shown
