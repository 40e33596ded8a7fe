"""Preferences of a file: the forms that are read, the samples of a pair, batches, and what is refused."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.chat.renderer import Chat
from ajet.learning.algorithms import DPO
from ajet.learning.preferences import (
    PreferenceSource,
    preference_samples,
    read_preferences,
)
from ajet.learning.settings import TrainSettings
from ajet.types import ConfigError, Sample
from tests import templates

USER = {"role": "user", "content": "1 + 1?"}
GOOD, BAD = {"role": "assistant", "content": "2"}, {"role": "assistant", "content": "3, perhaps"}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
FORMS: dict[str, Any] = {
    "a prompt and answers": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "whole chats": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "a prompt that the chats repeat": {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "texts": {"prompt": "1 + 1?", "chosen": "2", "rejected": "3, perhaps"},
    "a text and whole chats": {"prompt": "1 + 1?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
}


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, "qwen3")


def write(folder: Path, *lines: Any) -> Path:
    path = folder / "pairs.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def samples(chat: Chat, path: Path) -> list[list[Sample]]:
    return preference_samples(chat, read_preferences(path), 1000, print)


def text(chat: Chat, sample: Sample) -> str:
    return chat.tokenizer.decode(sample.token_ids[sample.mask].tolist())


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_preference_is_the_same_pair(tmp_path: Path, form: str) -> None:
    (found,) = read_preferences(write(tmp_path, {**FORMS[form], "tools": [TOOL]}))
    assert list(found.chosen.messages) == [USER, GOOD]
    assert list(found.rejected.messages) == [USER, BAD]
    assert found.chosen.tools == found.rejected.tools == [TOOL]
    assert found.chosen.where == f"{tmp_path / 'pairs.jsonl'}:1"


def test_the_answers_are_trained_with_opposite_signs_and_the_prompt_is_context(
    chat: Chat, tmp_path: Path
) -> None:
    ((good, bad),) = samples(chat, write(tmp_path, FORMS["texts"]))
    assert text(chat, good) == "2<|im_end|>" and text(chat, bad) == "3, perhaps<|im_end|>"
    assert (good.advantages[good.mask] == 1).all() and (bad.advantages[bad.mask] == -1).all()


def test_what_both_chats_begin_with_is_not_trained(chat: Chat, tmp_path: Path) -> None:
    first = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    ((good, bad),) = samples(
        chat, write(tmp_path, {"chosen": [*first, USER, GOOD], "rejected": [*first, USER, BAD]})
    )
    assert text(chat, good) == "2<|im_end|>" and "hello" not in text(chat, bad)


def test_every_turn_after_the_difference_is_trained(chat: Chat, tmp_path: Path) -> None:
    more = [{"role": "user", "content": "sure?"}, {"role": "assistant", "content": "yes"}]
    ((good, _),) = samples(
        chat, write(tmp_path, {"prompt": [USER], "chosen": [GOOD, *more], "rejected": [BAD]})
    )
    trained = text(chat, good)
    assert trained.startswith("2<|im_end|>") and trained.endswith("yes<|im_end|>") and "sure" not in trained


def test_each_side_has_the_samples_in_which_the_chats_differ_and_no_shared_answer_is_trained(
    tmp_path: Path,
) -> None:
    chat = Chat(templates.tokenizer("qwen3"))  # drops thoughts of earlier questions

    def said(text: str) -> dict[str, str]:
        return {"role": "assistant", "content": text, "reasoning_content": f"So {text}."}

    line = {
        "prompt": [USER, said("hello"), USER],
        "chosen": [said("2"), USER, said("yes")],
        "rejected": [said("3")],
    }
    (pair,) = samples(chat, write(tmp_path, line))
    assert [(float(s.advantages.sum() > 0), text(chat, s).lstrip()) for s in pair] == [
        (1.0, "2.\n</think>\n\n2<|im_end|>"),
        (1.0, "<think>\nSo yes.\n</think>\n\nyes<|im_end|>"),
        (0.0, "3.\n</think>\n\n3<|im_end|>"),
    ]
    source = PreferenceSource([pair], DPO(), TrainSettings(batch_size=1), 0)
    assert {s.pair for s in asyncio.run(source.batch(1, 0)).batch.samples} == {0}


def test_a_batch_is_the_mean_over_its_pairs_and_each_epoch_shows_all(chat: Chat, tmp_path: Path) -> None:
    lines = [{"prompt": "?", "chosen": f"a {i} b {i}", "rejected": "no"} for i in range(4)]
    pairs = samples(chat, write(tmp_path, *lines))
    source = PreferenceSource(pairs, DPO(), TrainSettings(batch_size=2), 0)
    batches = [asyncio.run(source.batch(step, 0)) for step in (1, 2)]
    shown = [text(chat, s) for b in batches for s in b.batch.samples if s.advantages.max() > 0]
    assert sorted(shown) == sorted(text(chat, good) for good, _ in pairs)
    first = batches[0]
    assert [s.pair for s in first.batch.samples] == [0, 0, 1, 1]
    assert first.sampled_tokens == sum(int(s.mask.sum()) for s in first.batch.samples)
    assert {w for s in first.batch.samples for w in s.weights[s.mask]} == {0.5}
    assert first.batch.needs == DPO.needs and first.batch.measures is not None
    assert all(np.isnan(s.logprobs).all() for s in first.batch.samples)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"chosen": ', "not JSON"),
        ({"chosen": [GOOD]}, "needs `rejected`, a list of objects"),
        ({"rejected": [GOOD]}, "needs `chosen`, a list of objects"),
        ({"prompt": 5, "chosen": [GOOD], "rejected": [BAD]}, "needs `prompt`, a list of objects"),
        ({"prompt": [USER], "chosen": [], "rejected": [BAD]}, "has no assistant message"),
        ({"prompt": "?", "chosen": [{"role": "bot"}], "rejected": [BAD]}, "has the role 'bot'"),
        ({"prompt": "?", "chosen": "a", "rejected": "b", "tools": 5}, "`tools` must be a list"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: Any, said: str) -> None:
    path = write(tmp_path, FORMS["texts"], "", line)
    with pytest.raises(ConfigError) as caught:
        read_preferences(path)
    assert str(caught.value).startswith(f"{path}:3: ") and said in str(caught.value)


def test_a_pair_that_does_not_differ_is_named(chat: Chat, tmp_path: Path) -> None:
    path = write(tmp_path, FORMS["texts"], {"prompt": "?", "chosen": "a", "rejected": "a"})
    with pytest.raises(ConfigError, match=r"pairs.jsonl:2: chosen and rejected do not differ"):
        samples(chat, path)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.jsonl: no such preference file"):
        read_preferences(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match=r"pairs.jsonl: contains no preference"):
        read_preferences(write(tmp_path, ""))
