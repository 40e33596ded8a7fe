"""The record of one episode's calls, which training, the journal and every report read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ajet.tracker.call import Call, Message, MessageNode, new_root
from ajet.tracker.tree import TokenTree
from ajet.types import AjetError, Generation, GenerationDelta, Image, Int32


class EpisodeClosed(AjetError):
    """A call arrived after its episode had ended."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The messages of a call to an engine or a chat model. ``answer`` is below the prompt's messages."""

    number: int
    agent: str
    target: str
    key: str
    answer: MessageNode
    started: float = 0.0
    """When its request arrived, in seconds since 1970; 0 if unknown."""
    seconds: float = 0.0
    """From then until its answer was recorded."""

    def chat(self) -> list[Message]:
        """The prompt's messages and the answer."""
        return self.answer.chat()


@dataclass(frozen=True, slots=True)
class Details:
    """What a recording needs of a call besides messages, tools and tokens."""

    sampling: Mapping[str, Any] = field(default_factory=dict)
    """The sampling parameters that the request set."""
    prompt: str | Sequence[int] | None = None
    """Text or token ids that the request continues, if it has no messages."""
    said: str | None = None
    """The answer's text, if the request has no messages."""
    stop: str | None = None
    """The stop string of the request that ended the answer."""
    reasoning_tokens: int | None = None
    """How many of the answer's tokens are reasoning, if they were counted."""


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call with messages that got an error, because its engine failed or its prompt was too long, for example."""

    number: int
    agent: str
    target: str
    key: str
    chat_end: MessageNode
    """The last message of the request."""
    code: str
    status: int
    message: str


class EpisodeRecord:
    """Calls, trees and conversations of one attempt at an episode. Not thread-safe: the engine's loop
    owns it until it is closed."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.exchanges: list[Exchange] = []
        self.trees: dict[str, TokenTree] = {}
        self.chats: dict[str, MessageNode] = {}
        """The root of the conversations of each merging key."""
        self.tools: dict[str, Sequence[Message]] = {}
        """The tools of each merging key that has any."""
        self.details: dict[int, Details] = {}
        """The details of each call, by its number."""
        self.images: dict[str, Image] = {}
        """The images of all messages, by reference; empty if the record was read from a journal."""
        self.image_tokens: dict[int, str] = {}
        """In a record that was read from a journal: the reference of each image, by its token."""
        self.refused: list[RefusedCall] = []
        self.replayed_texts = 0
        """Calls that a recording answered and that continue text: they have neither messages nor tokens."""
        self.closed = False

    def tree(self, key: str) -> TokenTree:
        """The token tree of a merging key."""
        if key not in self.trees:
            self.trees[key] = TokenTree()
        return self.trees[key]

    def chat(self, key: str) -> MessageNode:
        """The root of the conversations of a merging key."""
        if key not in self.chats:
            self.chats[key] = new_root()
        return self.chats[key]

    def add(
        self, call: Call, answer: Message | None = None, *, started: float = 0.0, seconds: float = 0.0
    ) -> MessageNode | None:
        """Record a call and the conversation that ends with its answer; return the answer's node, if the call has
        messages. ``started`` and ``seconds`` are those of `Exchange`. Raises EpisodeClosed after `close`."""
        if self.closed:
            raise EpisodeClosed("the episode has ended; this call is not recorded")
        self.calls.append(call)
        if call.chat_end is None or answer is None:
            return None
        node = call.chat_end.add(answer)
        self.exchanges.append(
            Exchange(call.number, call.agent, call.target, call.key, node, started, seconds)
        )
        node.answered_by(call)
        if call.continues:
            _with_prefill(call.chat_end, answer).answered_by(call)
        return node

    def images_in(self, ids: Int32) -> tuple[Image, ...]:
        """The images whose placeholders are among ``ids`` (int32[T]), as far as they are in memory, in the order of their first
        one."""
        tokens = list(dict.fromkeys(ids[ids < 0].tolist()))
        if not tokens:
            return ()
        known = {image.token: image for image in self.images.values()}
        return tuple(known[token] for token in tokens if token in known)

    def close(self) -> None:
        """Stop recording calls, and sort them in the order of their requests."""
        self.closed = True
        self.calls.sort(key=lambda c: c.number)
        self.exchanges.sort(key=lambda e: e.number)
        self.refused.sort(key=lambda r: r.number)

    @property
    def answered(self) -> int:
        """How many calls were answered, with messages or without."""
        texts = sum(call.chat_end is None for call in self.calls)
        return len(self.exchanges) + texts + self.replayed_texts

    @property
    def trained_calls(self) -> list[Call]:
        """The calls to train, in the order of their requests."""
        return sorted((c for c in self.calls if c.trained), key=lambda c: c.number)

    @property
    def sampled_tokens(self) -> int:
        """The number of sampled tokens to train."""
        return sampled(c for c in self.calls if c.trained)


def _with_prefill(prefill: MessageNode, answer: Message) -> MessageNode:
    """The node of a prefill and its continuation as one message, as most frameworks keep it."""
    assert prefill.parent
    content = (prefill.message.get("content") or "") + (answer.get("content") or "")
    return prefill.parent.add({**prefill.message, **answer, "content": content})


def sampled(calls: Iterable[Call]) -> int:
    """Tokens that the calls sampled."""
    return sum(len(c.generation.token_ids) for c in calls)


def merging_key(target: str, tools: Sequence[Message]) -> str:
    """Calls with equal keys may share a timeline: same target and same tool list, with its keys in the same order,
    because chat templates write them in that order."""
    text = json.dumps(list(tools), ensure_ascii=False, default=str)
    return f"{target}/{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:12]}"


ROUNDING = 1e-4
"""How far a logprob may exceed 0, because floating point rounds."""
_KINDS = {"i": "integer", "u": "integer", "f": "float"}
"""Names of numpy's dtype kinds."""


def check_generation(generation: Generation | GenerationDelta, vocabulary: int) -> None:
    """Check that an engine's result can be trained. Raises ValueError, with what is wrong, if the arrays have
    other types or lengths than `Generation` specifies, a token id is outside ``0..vocabulary - 1``, or a logprob
    is not finite or is above 0."""
    ids, logprobs, versions = generation.token_ids, generation.logprobs, generation.weight_versions
    for name, array, kind in (
        ("token_ids", ids, "integer"),
        ("logprobs", logprobs, "float"),
        ("weight_versions", versions, "integer"),
    ):
        if not (isinstance(array, np.ndarray) and array.ndim == 1 and _KINDS.get(array.dtype.kind) == kind):
            raise ValueError(f"{name} that are not an array of one dimension and of type {kind}")
    if not len(ids) == len(logprobs) == len(versions):
        raise ValueError(f"{len(ids)} tokens, {len(logprobs)} logprobs and {len(versions)} weight versions")
    known = (ids >= 0) & (ids < vocabulary)
    if not known.all():
        unknown = ids[known.argmin()]
        raise ValueError(f"the token id {unknown}, which is outside the vocabulary, 0..{vocabulary - 1}")
    good = (logprobs > -np.inf) & (logprobs <= ROUNDING)  # NaN is neither
    if not good.all():
        index = int(good.argmin())
        raise ValueError(
            f"logprob {logprobs[index]} at token {index} of {len(ids)}; logprobs must be finite and at most 0"
        )


def as_ids(ids: Sequence[int]) -> Int32:
    """Token ids as ``int32[T]``."""
    return np.asarray(ids, dtype=np.int32)
