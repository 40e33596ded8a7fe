"""What one episode's calls were: the record that training, the journal and every report read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ajet.chat import canonical_tool_arguments
from ajet.tracker.tree import Node, TokenTree
from ajet.types import AjetError, Generation, Int32

Message = Mapping[str, Any]


class EpisodeClosed(AjetError):
    """A call arrived after its episode had ended."""


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call: a sampled span at a place in a token tree.

    ``prompt`` and ``end`` are nodes: what the engine saw, and that plus what it sampled.
    """

    number: int
    agent: str
    target: str
    key: str
    """Merging key: calls share a tree if target and tool list are the same."""
    prompt: Node
    end: Node
    generation: Generation
    temperature: float
    trained: bool
    """Greedy calls and frozen targets are recorded, but not trained."""
    parent: int | None = None
    """The call whose conversation this prompt continued by stored ids."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The ids of a conversation that a later prompt may continue."""

    call: int
    prompt: Node
    end: Node


class EpisodeRecord:
    """Calls, trees and conversations of one attempt at an episode. Not thread-safe: the engine's loop
    owns it until it is closed."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.trees: dict[str, TokenTree] = {}
        self.closed = False
        self._conversations: dict[bytes, Conversation] = {}

    def find(self, key: str, messages: Sequence[Message]) -> tuple[Conversation, int] | None:
        """The longest recorded conversation that ``messages`` continues, and how many of them it holds."""
        hashes = list(_chain(key, messages))
        for held in range(len(messages) - 1, 0, -1):
            found = self._conversations.get(hashes[held - 1])
            if found:
                return found, held
        return None

    def prompt_node(self, key: str, ids: Int32, after: Conversation | None = None) -> Node:
        """The node of a prompt; with ``after``, ``ids`` are only what follows that conversation."""
        tree = self.trees.setdefault(key, TokenTree())
        return tree.extend(after.end if after else tree.root, ids)

    def add(self, call: Call, messages: Sequence[Message], answer: Message) -> None:
        """Record a call and the conversation it makes. Raises EpisodeClosed after `close`."""
        if self.closed:
            raise EpisodeClosed("the episode has ended; this call is not recorded")
        self.calls.append(call)
        *_, last = _chain(call.key, [*messages, answer])
        self._conversations[last] = Conversation(call.number, call.prompt, call.end)

    def end_node(self, key: str, prompt: Node, completion: Int32) -> Node:
        """The node of what was sampled after a prompt."""
        return self.trees[key].extend(prompt, completion)

    def close(self) -> None:
        """No call is recorded any more."""
        self.closed = True
        self._conversations.clear()

    @property
    def sampled_tokens(self) -> int:
        """Tokens that were sampled and are to be trained."""
        return sum(len(c.generation.token_ids) for c in self.calls if c.trained)


def merging_key(target: str, tools: Sequence[Message]) -> str:
    """Calls of equal keys may share a timeline: same target, same tool list."""
    text = json.dumps(list(tools), sort_keys=True, ensure_ascii=False, default=str)
    return f"{target}/{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def canonical(message: Message) -> str:
    """A message in one spelling: flattened text parts, canonical tool arguments, nothing else."""
    calls = [
        [c.get("id"), c["function"]["name"], canonical_tool_arguments(c["function"].get("arguments", ""))]
        for c in message.get("tool_calls") or ()
    ]
    fields = [
        message.get("role"),
        message.get("name"),
        message.get("tool_call_id"),
        message.get("content") or "",
        calls,
    ]
    return json.dumps(fields, ensure_ascii=False)


def _chain(key: str, messages: Sequence[Message]) -> Any:
    """Hash of each prefix of a conversation."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    for message in messages:
        digest = hashlib.blake2b(digest + canonical(message).encode(), digest_size=16).digest()
        yield digest


def as_ids(ids: Sequence[int]) -> Int32:
    """Token ids as ``int32[T]``."""
    return np.asarray(ids, dtype=np.int32)
