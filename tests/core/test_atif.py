"""Trajectories in ATIF: what is written of an episode is read back. tests/plugins/harbor has them validated by Harbor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ajet_atif as atif
from ajet.rollout.recording import Recording
from ajet.types import ConfigError, Task
from tests.ended import IMAGES, ended
from tests.properties import examples

CONFIG = {"model": "qwen", "targets": {"frozen": {"frozen_model": {"model": "gpt"}}}}
OF_HARBOR: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "session_id": "s",
    "agent": {"name": "terminus-2", "version": "2"},
    "steps": [
        {"step_id": 1, "source": "user", "message": "List."},
        {"step_id": 2, "source": "agent", "message": "ls", "observation": {"results": [{"content": "a"}]}},
        {"step_id": 3, "source": "agent", "message": "One file."},
    ],
}
ADDRESSES = {f"../images/{image.file_name}": ref for ref, image in IMAGES.items()}


def written(event: Any) -> dict[str, Any]:
    """An episode's trajectory, as its file has it."""
    text = atif.text_of(atif.trajectory_of(event, CONFIG, "../images"))
    read: dict[str, Any] = json.loads(text, parse_constant=lambda name: 1 / 0)
    return read


def with_references(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message that was read, with images as an episode has them."""
    content = message["content"]
    if isinstance(content, list):
        content = [
            {"type": "image", "image": ADDRESSES[part["image_url"]["url"]]} if "image_url" in part else part
            for part in content
        ]
    return {**message, "content": content}


def same(these: Iterable[Any], those: Iterable[Any]) -> bool:
    """Whether values are equal in any order."""
    return sorted(json.dumps(one, sort_keys=True) for one in these) == sorted(
        json.dumps(one, sort_keys=True) for one in those
    )


@given(st.integers(0, 1 << 32))
@examples(400)
def test_what_was_asked_and_answered_is_read_back_and_each_answer_is_one_call(seed: int) -> None:
    event = ended(seed)
    read = list(atif.calls_of(written(event)))
    told = []
    for call in read:
        one, chat = call.trajectory, [*map(with_references, [*call.messages, call.answer])]
        told.append(
            (one["agent"]["name"], one["extra"]["target"], one["agent"].get("tool_definitions", []), chat)
        )
    calls = zip(event.calls, event.messages, strict=True)
    assert same(told, [(call.agent, call.target, call.tools, chat) for call, chat in calls])


@given(st.integers(0, 1 << 32))
@examples(100)
def test_each_answer_is_learned_once_by_sft(seed: int) -> None:
    event = ended(seed)
    learned = [
        message
        for _, chat, _ in atif.transcripts_of(written(event))
        for message in chat
        if message["role"] == "assistant" and message.get("weight") != 0
    ]
    assert len(learned) == len(event.calls)


# ------------------------------------------------------------------ what a trajectory has besides messages


def test_a_call_has_its_tokens_and_an_episode_its_verdict() -> None:
    event = next(
        e for e in map(ended, range(99)) if e.calls and e.calls[0].target == "policy" and not e.failure
    )
    trajectory = written(replace(event, response={"a": 1}, reward=0.5, is_success=True))
    assert (trajectory["schema_version"], trajectory["trajectory_id"]) == ("ATIF-v1.7", f"one/{event.id}")
    assert trajectory["agent"]["model_name"] == "qwen"
    told = trajectory["extra"]
    assert (told["reward"], told["is_success"], told["response"]) == (0.5, True, {"a": 1})
    assert told["metrics"] == {"length": 1.0, "nan": "NaN"} and told["task"]["metadata"]["answer"] == "3"
    step = next(step for step in trajectory["steps"] if step.get("llm_call_count"))
    metrics, line = step["metrics"], event.timelines[0]
    assert metrics["completion_token_ids"] == line.token_ids[3:].tolist()
    assert metrics["prompt_token_ids"] == line.token_ids[:3].tolist()
    assert set(metrics["logprobs"]) == {-0.1}
    assert metrics["extra"] == {"temperature": 0.7, "weight_versions": [4]}
    brief = atif.trajectory_of(event, CONFIG, "", prompt_ids=False)
    assert not any("prompt_token_ids" in step.get("metrics", {}) for step in brief["steps"])


def test_an_episode_that_failed_before_its_first_call_has_its_question() -> None:
    event = replace(ended(1), calls=(), messages=(), timelines=(), failure="timeout", error="too late")
    for task, asked in (
        (Task("t", "1 + 2?"), "1 + 2?"),
        (Task("t", messages=({"role": "user", "content": "why?"},)), "why?"),
        (Task("t", messages=({"role": "human"},)), ""),
    ):
        trajectory = written(replace(event, task=task))
        assert [step["message"] for step in trajectory["steps"]] == [asked]
        assert trajectory["extra"]["failure"] == "timeout" and "reward" not in trajectory["extra"]


def test_halves_of_characters_become_question_marks() -> None:
    event = next(e for e in map(ended, range(99)) if e.calls)
    chats = [[*chat[:-1], {**chat[-1], "content": "a\ud83d"}] for chat in event.messages[:1]]
    trajectory = written(replace(event, messages=chats, calls=event.calls[:1]))
    assert [call.answer["content"] for call in atif.calls_of(trajectory)] == ["a?"]


def test_results_that_name_no_call_answer_the_calls_in_their_order() -> None:
    """As Harbor writes what mini-swe-agent does."""
    calls = [{"tool_call_id": name, "function_name": "bash", "arguments": {}} for name in ("c1", "c2")]
    results = [{"content": "one"}, {"content": ""}, {"content": "and a word"}]
    step = {
        "step_id": 2,
        "source": "agent",
        "message": "I do.",
        "reasoning_content": "I do.",
        "tool_calls": calls,
    }
    acted = {**step, "observation": {"results": results}}
    steps = [OF_HARBOR["steps"][0], acted, OF_HARBOR["steps"][2]]
    first, last = atif.calls_of({**OF_HARBOR, "steps": steps})
    assert "reasoning_content" not in first.answer
    assert last.messages[2:] == (
        {"role": "tool", "tool_call_id": "c1", "content": "one"},
        {"role": "tool", "tool_call_id": "c2", "content": ""},
        {"role": "user", "content": "and a word"},
    )


# ------------------------------------------------------------------ where trajectories are read


def test_a_trajectory_is_a_recording_of_one_episode(tmp_path: Path) -> None:
    event = next(e for e in map(ended, range(99)) if len(e.calls) > 2 and not e.failure)
    file = tmp_path / "trajectory.json"
    file.write_text(atif.text_of(atif.trajectory_of(event, CONFIG, "../images")), encoding="utf-8")
    (episode,) = Recording.read(file).episodes
    assert (episode.id, episode.task.id, len(episode.calls)) == (event.id, "t", len(event.calls))
    assert episode.task.metadata["answer"] == "3"
    assert episode.verdict and episode.verdict.reward == event.reward
    tokens = [call.reply.tokens.ids for call in episode.calls if call.reply and call.reply.tokens]
    assert same(tokens, [line.token_ids[3:].tolist() for line in event.timelines])


def test_a_trajectory_of_another_program_has_its_first_question_as_the_task(tmp_path: Path) -> None:
    file = tmp_path / "trajectory.json"
    file.write_text(json.dumps(OF_HARBOR))
    (episode,) = Recording.read(file).episodes
    assert episode.task.messages == [{"role": "user", "content": "List."}] and episode.verdict is None
    assert [len(call.request.messages) for call in episode.calls] == [1, 3]
    file.write_text(json.dumps({**OF_HARBOR, "steps": [{"source": "agent"}]}))
    with pytest.raises(ConfigError, match=r"trajectory\.json: cannot be read as a trajectory"):
        Recording.read(file)
