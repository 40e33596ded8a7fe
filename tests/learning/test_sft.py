"""Supervised fine-tuning: transcripts as samples and batches, and what is refused."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ajet.chat.renderer import Chat
from ajet.learning.settings import TrainSettings
from ajet.learning.sft import (
    FinishedChat,
    TranscriptSource,
    read_transcripts,
    samples_of,
    sft_batch,
    steps_for,
    transcript_samples,
)
from ajet.types import ConfigError, Sample
from tests import templates

USER = {"role": "user", "content": "1 + 1?"}
GOOD = {"messages": [USER, {"role": "assistant", "content": "2"}]}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


@pytest.fixture(scope="module")
def chat(tokenizer: Any) -> Chat:
    return Chat(tokenizer, "qwen3")


def sample_of(chat: Chat, transcript: FinishedChat) -> Sample:
    """The sample of a transcript that becomes one."""
    (sample,) = samples_of(chat, transcript)
    return sample


def learned(chat: Chat, sample: Sample) -> str:
    return chat.tokenizer.decode(sample.token_ids[sample.mask].tolist())


# ------------------------------------------------------------------ samples


def test_only_the_assistants_own_tokens_are_learned_of_every_turn(chat: Chat) -> None:
    messages = [
        {"role": "system", "content": "SYSTEM"},
        {"role": "user", "content": "QUESTION"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "RESULT"},
        {"role": "assistant", "content": "It is 2."},
    ]
    sample = sample_of(chat, FinishedChat(messages, [TOOL]))
    text = learned(chat, sample)
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert text.endswith("It is 2.<|im_end|>"), "the end of a turn is learned too"
    assert not any(word in text for word in ("SYSTEM", "QUESTION", "RESULT", "<|im_start|>", "user"))
    whole = chat.tokenizer.decode(sample.token_ids.tolist())
    assert all(word in whole for word in ("SYSTEM", "QUESTION", "RESULT")), "but all of it is context"


def test_answers_of_weight_0_are_context(chat: Chat) -> None:
    answers = [
        {"role": "assistant", "content": "BAD", "weight": 0},
        {"role": "assistant", "content": "GOOD", "weight": 1},
    ]
    sample = sample_of(chat, FinishedChat([USER, answers[0], USER, answers[1]]))
    assert learned(chat, sample).endswith("GOOD<|im_end|>") and "BAD" not in learned(chat, sample)
    assert "BAD" in chat.tokenizer.decode(sample.token_ids.tolist())


def test_a_sample_is_of_one_length_and_was_sampled_by_nobody(chat: Chat) -> None:
    sample = sample_of(chat, FinishedChat(GOOD["messages"]))
    arrays = (sample.token_ids, sample.mask, sample.logprobs, sample.advantages, sample.weights)
    assert {len(a) for a in arrays} == {len(sample.token_ids)}
    assert [a.dtype for a in arrays] == [np.int32, np.bool_, np.float32, np.float32, np.float32]
    assert np.isnan(sample.logprobs).all()
    assert (sample.weights == sample.mask).all() and (sample.advantages == sample.mask).all()


def test_a_batch_is_the_mean_over_all_learned_tokens(chat: Chat) -> None:
    short, long = (
        sample_of(chat, FinishedChat([USER, {"role": "assistant", "content": text}]))
        for text in ("2", "the answer is the number two")
    )
    batch = sft_batch([short, long], 0.5)
    weights = {w for s in batch.samples for w in s.weights[s.mask].tolist()}
    assert len(weights) == 1, "every token counts the same, in whichever transcript"
    assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1.0)
    assert (batch.learning_rate, batch.mini_batches) == (0.5, [[0, 1]])
    assert (short.weights == short.mask).all(), "the samples stay as they were"


@pytest.mark.parametrize(("epochs", "count", "size", "steps"), [(1, 4, 2, 2), (3, 5, 2, 8), (1, 1, 32, 1)])
def test_each_epoch_shows_every_transcript_once_in_an_order_of_its_own(
    chat: Chat, epochs: int, count: int, size: int, steps: int
) -> None:
    assert steps_for(epochs, count, size) == steps
    samples = [
        samples_of(chat, FinishedChat([USER, {"role": "assistant", "content": str(i)}])) for i in range(count)
    ]

    def shown(seed: int) -> list[str]:
        source = TranscriptSource(samples, TrainSettings(batch_size=size), seed, epochs)
        batches = [asyncio.run(source.batch(step, 0)) for step in range(1, steps + 1)]
        assert all(b.sampled_tokens == sum(int(s.mask.sum()) for s in b.batch.samples) for b in batches)
        return [learned(chat, s) for b in batches for s in b.batch.samples]

    order = shown(0)
    assert len(order) == epochs * count, "the last batch is what is left"
    for epoch in range(epochs):
        assert set(Counter(order[epoch * count : (epoch + 1) * count]).values()) == {1}
    assert shown(0) == order
    assert count == 1 or any(shown(seed) != order for seed in (1, 2, 3))


# ------------------------------------------------------------------ reading


def write(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "chats.jsonl"
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return path


def test_a_file_has_one_transcript_a_line_and_may_have_empty_lines(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(GOOD), "", "  ", json.dumps({**GOOD, "tools": [TOOL]}))
    first, second = read_transcripts(path)
    assert (first.messages, first.tools, first.where) == (GOOD["messages"], (), f"{path}:1")
    assert (second.tools, second.where) == ([TOOL], f"{path}:4")


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85"])
def test_other_unicode_line_ends_inside_a_text_end_no_line(tmp_path: Path, end: str) -> None:
    said = f"one{end}two"
    line = json.dumps({"messages": [USER, {"role": "assistant", "content": said}]}, ensure_ascii=False)
    (transcript,) = read_transcripts(write(tmp_path, line))
    assert transcript.messages[1]["content"] == said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"messages": [', "not JSON"),
        (b'{"messages": "\xff"}', "not JSON"),
        ("[1, 2]", "needs `messages`"),
        ('{"message": []}', "needs `messages`"),
        ('{"messages": ["hi"]}', "needs `messages`"),
        ('{"messages": [5, {"role": "assistant", "content": "2"}]}', "needs `messages`"),
        ('{"messages": [{"content": "2"}]}', "a message has the role None"),
        (
            '{"messages": [{"role": "asistant", "content": "2"}]}',
            "has the role 'asistant'; known: system, user",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "2", "weight": 0.5}]}',
            "has the weight 0.5; write 0",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "2", "weight": "0"}]}',
            "has the weight '0'; write 0",
        ),
        ('{"messages": []}', "no assistant message"),
        ('{"messages": [{"role": "user", "content": "?"}]}', "no assistant message"),
        (
            '{"messages": [{"role": "assistant", "content": "2"}], "tools": ["add"]}',
            "`tools` must be a list of objects",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "2"}], "tools": 5}',
            "`tools` must be a list of objects",
        ),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path: Path, line: str | bytes, said: str) -> None:
    path = write(tmp_path, json.dumps(GOOD), "", line)
    with pytest.raises(ConfigError) as caught:
        read_transcripts(path)
    assert str(caught.value).startswith(f"{path}:3: ") and said in str(caught.value)


AGENT = {
    "name": "a",
    "version": "1",
    "tool_definitions": [{"type": "function", "function": {"name": "look"}}],
}
STEPS = [
    {"step_id": 1, "source": "user", "message": "Hi"},
    {"step_id": 2, "source": "agent", "message": "before", "is_copied_context": True},
    {"step_id": 3, "source": "agent", "message": "Yo"},
]
TRAJECTORY = {"schema_version": "ATIF-v1.8", "trajectory_id": "t", "agent": AGENT, "steps": STEPS}


def test_trajectories_are_transcripts_whose_copied_answers_are_context(tmp_path: Path) -> None:
    inner = {**TRAJECTORY, "trajectory_id": "inner"}
    (tmp_path / "trial" / "agent").mkdir(parents=True)
    one, lines = tmp_path / "trial" / "agent" / "trajectory.json", tmp_path / "many.jsonl"
    one.write_text(json.dumps({**TRAJECTORY, "subagent_trajectories": [inner]}, indent=1))
    lines.write_text(json.dumps(TRAJECTORY) + "\n" + json.dumps(GOOD))
    for file in (one, tmp_path):
        outer, embedded = read_transcripts(file)
        assert (outer.where, embedded.where) == (str(one), f"{one}: inner")
        assert outer.tools == AGENT["tool_definitions"] and outer.messages == embedded.messages
    assert outer.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "before", "weight": 0},
        {"role": "assistant", "content": "Yo"},
    ]
    assert [transcript.where for transcript in read_transcripts(lines)] == [f"{lines}:1", f"{lines}:2"]


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({**TRAJECTORY, "steps": STEPS[:2]}, "has no answer of a model to learn"),
        (
            {**TRAJECTORY, "steps": [{"source": "robot", "message": ""}]},
            "cannot be read as a trajectory.*robot",
        ),
        ({**TRAJECTORY, "steps": [*STEPS, {**STEPS[0], "extra": {"ajet": {"role": "me"}}}]}, "role 'me'"),
        ({"schema_version": "ATIF"}, "cannot be read as a trajectory"),
    ],
)
def test_what_is_no_trajectory_to_learn_from_is_named(tmp_path: Path, record: Any, said: str) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(record, indent=1))
    with pytest.raises(ConfigError, match=rf"trajectory\.json: .*{said}"):
        read_transcripts(file)


def test_a_folder_without_trajectories_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains no trajectory\*\.json"):
        read_transcripts(tmp_path)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent.jsonl: no such transcript file"):
        read_transcripts(tmp_path / "absent.jsonl")
    with pytest.raises(ConfigError, match=r"chats.jsonl: contains no transcript"):
        read_transcripts(write(tmp_path, "", ""))


def test_a_transcript_that_cannot_be_rendered_is_named_by_its_place(chat: Chat) -> None:
    good = FinishedChat(GOOD["messages"], (), "chats.jsonl:1")
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": "add"}]}
    bad = FinishedChat([USER, call], (), "chats.jsonl:2")
    with pytest.raises(ConfigError, match=r"^chats.jsonl:2: the chat format cannot render it"):
        transcript_samples(chat, [good, bad], 1000, print)


def test_a_transcript_longer_than_the_context_is_named_by_its_place(chat: Chat) -> None:
    long = FinishedChat([USER, {"role": "assistant", "content": "word " * 50}], (), "chats.jsonl:7")
    assert len(transcript_samples(chat, [long], 1000, print)) == 1
    with pytest.raises(
        ConfigError, match=r"^chats.jsonl:7: has \d+ tokens, but the model's context holds 32"
    ):
        transcript_samples(chat, [long], 32, print)


def test_a_transcript_in_which_nothing_was_asked_is_named_by_its_place(chat: Chat) -> None:
    greeting = FinishedChat([{"role": "assistant", "content": "Hello."}], (), "chats.jsonl:3")
    with pytest.raises(ConfigError, match=r"^chats.jsonl:3: has its only assistant message first"):
        transcript_samples(chat, [greeting], 1000, print)


def test_samples_of_one_transcript_are_in_one_step_and_it_is_said_once_why_there_are_several() -> None:
    chat = Chat(templates.tokenizer("qwen3"))  # drops thoughts of earlier questions
    thought = {"role": "assistant", "content": "2", "reasoning_content": "One and one."}
    two = [USER, thought, USER, thought]
    read = [FinishedChat(two, (), f"chats.jsonl:{line}") for line in (1, 2, 3)]
    told: list[str] = []
    samples = transcript_samples(chat, [*read, FinishedChat(GOOD["messages"])], 1000, told.append)
    assert [len(found) for found in samples] == [2, 2, 2, 1]
    (remark,) = told
    assert remark.startswith("chats.jsonl:1 and 2 more: becomes several samples (template drops thinking)")
    for sample in samples[0]:
        assert learned(chat, sample) == "<think>\nOne and one.\n</think>\n\n2<|im_end|>"
    source = TranscriptSource(samples, TrainSettings(batch_size=4), 0)
    batch = asyncio.run(source.batch(1, 0)).batch
    assert len(batch.samples) == 7 and batch.mini_batches == [list(range(7))]
    assert sum(float(s.weights.sum()) for s in batch.samples) == pytest.approx(1.0)
