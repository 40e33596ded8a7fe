"""Generated chats as samples for supervised learning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.interfaces.backbone import Sample, Span

Chat = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A chat with its tools, and the tasks whose solution it contains, which must not be held out."""

    messages: Chat
    tools: tuple[dict[str, Any], ...] = ()
    tasks: tuple[str, ...] = ()


def tool_call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The assistant's message with one tool call, in the format of chat completions."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
    }


def to_sample(renderer: Any, transcript: Transcript) -> Sample:
    """The transcript as token ids, exactly those of the agent's calls, with the assistant's tokens masked for training.

    It is rendered with a user turn after it, which is cut off again, because Qwen3's template adds an empty think
    block to the last answer. Advantages and weights are 1, logprobs NaN.
    """
    count = len(transcript.messages)
    messages = [*transcript.messages, {"role": "user", "content": ""}]
    rendered = renderer.render(messages, tools=list(transcript.tools) or None)
    length = rendered.message_indices.index(count)
    mask = np.array(rendered.sampled_mask[:length], dtype=bool)
    return make_sample(rendered.token_ids[:length], mask)


def make_sample(token_ids: Sequence[int], mask: np.ndarray) -> Sample:
    """A sample for supervised learning from T ids and ``mask`` (bool[T]): advantages and weights 1, logprobs NaN."""
    length = len(token_ids)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return Sample(
        token_ids=np.array(token_ids, dtype=np.int32),
        mask=mask,
        logprobs=np.full(length, np.nan, dtype=np.float32),
        advantages=np.ones(length, dtype=np.float32),
        weights=np.ones(length, dtype=np.float32),
        spans=tuple(
            Span(int(start), int(end), call, "starter", "default")
            for call, (start, end) in enumerate(edges.reshape(-1, 2))
        ),
    )
